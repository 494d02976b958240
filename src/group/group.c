/* SPDX-License-Identifier: Apache-2.0 */
/* Joining and leaving: who is on which node, and which path leads to whom. */
#include "group/group.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "group/boot/boot.h"
#include "group/introduce.h"
#include "group/join.h"
#include "group/select_network.h"
#include "base/error.h"
#include "group/death_watch.h"
#include "group/members.h"
#include "base/struct_size.h"
#include "engine/engine.h"
#include "tern_engine.h"

#define STATUS_TEXT 256
#define DEFAULT_WAIT_MS 30000
#define LEAST_SILENCE_MS 2000      /* some heartbeats */
#define ELASTIC_MESSAGE_BYTES 1024 /* records, and parts of gatherings: tell.c */

void tern_group_config_init_sized(struct tern_group_config *config, size_t size)
{
	static const struct tern_group_config initial = {.wait_ms = DEFAULT_WAIT_MS};

	struct_init(&kind_group_config, config, size, &initial);
}

int group_allgather(tern_group *group, const void *mine, void *all, size_t bytes)
{
	int rc;

	if (group->newcomer)
		return newcomer_gather(group, mine, all, bytes);
	if (members_gather_here(group))
		return members_gather(group, mine, all, bytes);
	if (group->nr_ranks == 1 && !group->boot.allgather) {
		memcpy(all, mine, bytes);
		return 0;
	}
	fail(0, "%s", "");
	rc = group->boot.allgather(group->boot.ctx, mine, all, bytes);
	if (!rc)
		return 0;
	if (*tern_last_error())
		return fail(TERN_ERR_BOOTSTRAP, "allgather: %s", tern_last_error());
	return fail(TERN_ERR_BOOTSTRAP, "the allgather of the bootstrap returned %d on rank %d", rc,
		group->rank);
}

int group_agree_status(tern_group *group, int rc, const char *what)
{
	struct status {
		int32_t rc;
		char text[STATUS_TEXT];
	} mine = {.rc = rc}, *all = calloc((size_t)group->nr_ranks, sizeof(*all));
	int failed = 0;

	if (!all)
		return fail(
			TERN_ERR_NOMEM, "no memory for the status of %d ranks", group->nr_ranks);
	if (rc)
		snprintf(mine.text, sizeof(mine.text), "%.*s", STATUS_TEXT - 1, tern_last_error());
	failed = group_allgather(group, &mine, all, sizeof(mine));
	if (failed && rc)
		failed = fail(rc, "%s: %s", what, mine.text); /* the nearer cause */
	for (int r = 0; r < group->nr_ranks && !failed; r++)
		if (all[r].rc == TERN_ERR_MEMBERS) /* before what single ranks say: all begin again
						    */
			failed = fail(TERN_ERR_MEMBERS, "%s: rank %d: %.*s", what, r,
				STATUS_TEXT - 1, all[r].text);
	for (int r = 0; r < group->nr_ranks && !failed; r++) {
		all[r].text[STATUS_TEXT - 1] = 0;
		if (all[r].rc && r == group->rank)
			failed = fail(all[r].rc, "%s: %s", what, all[r].text);
	}
	for (int r = 0; r < group->nr_ranks && !failed; r++)
		if (all[r].rc)
			failed = fail(all[r].rc, "%s: rank %d: %s", what, r, all[r].text);
	free(all);
	return failed;
}

/* Settings of all ranks: `each` words of every rank, which say first whether it has given any: of
 * one that is no member any more all ranks have zeros. */
struct all_settings {
	const uint64_t *words;
	int nr_ranks, each;
};

static bool differ(const struct all_settings *all, int r, int s, int which)
{
	const uint64_t *a = all->words + (size_t)r * all->each,
		       *b = all->words + (size_t)s * all->each;

	return a[0] && b[0] && a[which] != b[which];
}

/* "7168 on ranks 0, 1, 3; 4096 on rank 2" */
static void describe_values(char *text, size_t bytes, const struct all_settings *all, int which)
{
	int nr_ranks = all->nr_ranks;
	size_t at = 0;

	for (int r = 0; r < nr_ranks && at < bytes - 48; r++) {
		const uint64_t *words = all->words + (size_t)r * all->each;
		int first = 0, nr = 0;

		while (first < r &&
			(!all->words[(size_t)first * all->each] || differ(all, first, r, which)))
			first++;
		if (first < r || !words[0])
			continue; /* told with that rank */
		at += (size_t)snprintf(text + at, bytes - at, "%s%llu on rank", at ? "; " : "",
			(unsigned long long)words[which]);
		for (int s = r; s < nr_ranks && at < bytes - 48; s++)
			if (all->words[(size_t)s * all->each] && !differ(all, r, s, which))
				at += (size_t)snprintf(
					text + at, bytes - at, "%s %d", nr++ ? "," : "", s);
	}
	if (at >= bytes - 48)
		snprintf(text + at, bytes - at, " ...");
}

int group_agree_settings(tern_group *group, const struct setting *settings, int nr_settings)
{
	size_t each = (size_t)nr_settings + 1;
	uint64_t *mine = calloc(each * ((size_t)group->nr_ranks + 1), sizeof(*mine));
	struct all_settings all = {mine + each, group->nr_ranks, (int)each};
	char text[512];
	int rc;

	if (group->newcomer) {
		free(mine);
		return newcomer_compare(group, settings, nr_settings);
	}
	if (!mine)
		return fail(TERN_ERR_NOMEM, "no memory to compare the settings of %d ranks",
			group->nr_ranks);
	mine[0] = 1;
	for (int i = 0; i < nr_settings; i++)
		mine[i + 1] = settings[i].value;
	rc = group_allgather(group, mine, mine + each, each * sizeof(*mine));
	for (int i = 0; i < nr_settings && !rc; i++)
		for (int r = 0; r < group->nr_ranks && !rc; r++)
			if (differ(&all, r, group->rank, i + 1)) {
				describe_values(text, sizeof(text), &all, i + 1);
				rc = fail(TERN_ERR_MISMATCH, "ranks disagree on %s: %s",
					settings[i].name, text);
			}
	free(mine);
	return rc;
}

int group_pass_fd(tern_group *group, uint32_t round, int fd)
{
	struct fd_passing_guest *guests = group->guests;
	int rc;

	if (group->newcomer)
		return newcomer_pass_fd(group, fd);
	for (int r = 0; r < group->nr_ranks; r++) {
		const struct peer *peer = &group->peers[r];

		/* Paths may change after joining: force_engine. */
		guests[r].wanted = peer->path == TERN_PATH_MAPPED && !peer->same_process &&
				   group_has(group, (uint32_t)r);
		guests[r].lifeline = members_gather_here(group) ? peer->lifeline : -1;
		guests[r].fd = -1;
		guests[r].called = 0;
	}
	rc = fd_passing_exchange(
		group->passing, group->rank, group->nr_ranks, round, fd, guests, group->wait_ms);
	for (int r = 0; rc && r < group->nr_ranks; r++)
		if (guests[r].fd >= 0) {
			close(guests[r].fd);
			guests[r].fd = -1;
		}
	return rc == TERN_ERR_PEER_DEAD ? members_lack(group) : rc;
}

static void configure_engine(
	const tern_group *group, const struct choice *choice, struct tern_engine_config *engine)
{
	tern_engine_config_init(engine);
	engine->transport = choice->transport;
	engine->devices[0] = choice->device;
	engine->wait_ms = group->wait_ms;
	engine->timeout_ms = group->silence_ms                   ? group->silence_ms
			     : group->wait_ms > LEAST_SILENCE_MS ? group->wait_ms
								 : LEAST_SILENCE_MS;
	if (group->elastic)
		engine->message_bytes = ELASTIC_MESSAGE_BYTES;
}

static int make_engine_over(tern_group *group, const struct choice *choice, tern_engine **out)
{
	struct tern_engine_config engine;

	configure_engine(group, choice, &engine);
	return tern_engine_create(group, &engine, out);
}

int group_make_engine_alone(tern_group *group, const struct engine_networks *networks)
{
	struct tern_engine_config engine;
	struct choice choice;

	select_networks(group->transport, &choice);
	configure_engine(group, &choice, &engine);
	return engine_create_alone(group, &engine, networks, &group->engine);
}

int group_make_engine(tern_group *group, tern_engine **engine)
{
	struct choice choice;

	select_networks(group->transport, &choice);
	return make_engine_over(group, &choice, engine);
}

static int make_engine(tern_group *group, const struct choice *choice, bool needed)
{
	int rc = make_engine_over(group, choice, &group->engine);

	if (!rc || needed)
		return rc;
	snprintf(group->no_engine, sizeof(group->no_engine), "%.*s",
		(int)sizeof(group->no_engine) - 1, tern_last_error());
	return 0;
}

/* True on all ranks where it is on one. */
static int agree_whether_any(tern_group *group, bool mine, bool *any)
{
	uint8_t *all = calloc((size_t)group->nr_ranks, sizeof(*all)), here = mine;
	int rc = all ? group_allgather(group, &here, all, sizeof(here))
		     : fail(TERN_ERR_NOMEM, "no memory for %d ranks", group->nr_ranks);

	*any = false;
	for (int r = 0; r < group->nr_ranks && !rc; r++)
		*any = *any || all[r];
	free(all);
	return rc;
}

/* Peers that are not mapped are reached through an engine, if one can be made: otherwise the group
 * lives without them, unless a caller has asked for a network.
 */
static int open_engine(tern_group *group, const struct tern_group_config *config)
{
	const struct setting settings[] = {{"force_engine", group->engine_forced},
		{"elastic", group->elastic}, {"silence_ms", (uint64_t)group->silence_ms}};
	struct choice choice;
	bool needed, wanted;
	int rc = group_agree_settings(group, settings, 3);

	wanted = group->nr_nodes > 1 || group->engine_forced;
	if (!rc && wanted) {
		select_networks(config->transport, &choice);
		rc = agree_whether_any(group, config->transport, &needed);
		rc = rc ? rc : make_engine(group, &choice, needed || group->engine_forced);
	}
	for (int r = 0; r < group->nr_ranks && !rc && group->engine; r++)
		if (group->peers[r].path == TERN_PATH_NONE ||
			(group->engine_forced && r != group->rank))
			group->peers[r].path = TERN_PATH_ENGINE;
	if (!rc)
		describe_paths(group, wanted ? &choice : NULL, group->description,
			sizeof(group->description));
	return rc;
}

/* Without a bootstrap that works nobody can be told. */
static int check_boot(const struct tern_boot *boot)
{
	int rc = boot_check(boot);

	if (rc)
		return rc;
	if (boot->nr_ranks < 1 || boot->nr_ranks > UINT16_MAX)
		return fail(TERN_ERR_INVALID, "boot.nr_ranks is %d; 1 to %d are possible",
			boot->nr_ranks, UINT16_MAX);
	if (boot->rank < 0 || boot->rank >= boot->nr_ranks)
		return fail(TERN_ERR_INVALID, "boot.rank is %d of %d ranks", boot->rank,
			boot->nr_ranks);
	return 0;
}

void group_free(tern_group *group)
{
	door_close(group);
	newcomer_close(group);
	members_hear_no_more(group);
	tern_engine_destroy(group->engine);
	group->engine = NULL;
	members_close(group);
	death_watch_close(group);
	for (int r = 0; group->peers && r < group->nr_ranks; r++)
		if (group->peers[r].lifeline >= 0)
			close(group->peers[r].lifeline);
	if (group->lifeline >= 0)
		close(group->lifeline);
	if (group->own_lifeline >= 0)
		close(group->own_lifeline);
	fd_passing_close(group->passing);
	free(group->guests);
	free(group->me);
	if (group->boot.close)
		group->boot.close(group->boot.ctx);
	free(group->transport);
	free(group->peers);
	free(group);
}

static int check_scheduler(const struct scheduler *d)
{
	if (!d || (d->wake && d->has_died && d->engine))
		return 0;
	return fail(TERN_ERR_INVALID, "the scheduler of a group lacks %s",
		!d->wake    ? "wake"
		: d->engine ? "has_died"
			    : "engine");
}

static int check_rendezvous(
	const struct tern_group_config *config, const struct scheduler *scheduler)
{
	const struct tern_rendezvous *r = &config->rendezvous;

	if (!r->get && !r->set)
		return 0;
	if (!r->get || !r->set)
		return fail(TERN_ERR_INVALID, "rendezvous.%s is NULL", r->get ? "set" : "get");
	if (!config->elastic)
		return fail(TERN_ERR_INVALID, "a rendezvous, and the group is not elastic");
	return scheduler ? fail(TERN_ERR_UNSUPPORTED, "a rendezvous on a simulated network") : 0;
}

static int close_boot(const struct tern_boot *boot, int rc)
{
	if (boot->close)
		boot->close(boot->ctx);
	return rc;
}

/* The bootstrap is taken over all the same, where the config's size says that it has one: what was
 * not initialised may hold anything. */
static int refuse(const struct tern_group_config *config, int rc)
{
	char text[256];

	if (!config || config->size < STRUCT_END(tern_group_config, boot) ||
		config->size > STRUCT_MOST)
		return rc;
	snprintf(text, sizeof(text), "%s", tern_last_error());
	if (!boot_take(&config->boot))
		close_boot(&config->boot, rc);
	return fail(rc, "%s", text);
}

int group_read_config(const struct tern_group_config *theirs, const struct scheduler *scheduler,
	tern_group **out, struct tern_group_config *config)
{
	int rc;

	tern_group_config_init(config);
	rc = struct_read(&kind_group_config, theirs, config);
	if (rc)
		return refuse(theirs, rc);
	rc = boot_take(&config->boot);
	if (rc)
		return rc; /* it stays another group's */
	rc = out ? check_boot(&config->boot) : fail(TERN_ERR_INVALID, "group is NULL");
	rc = rc ? rc : check_scheduler(scheduler);
	rc = rc ? rc : check_rendezvous(config, scheduler);
	return rc ? close_boot(&config->boot, rc) : 0;
}

int group_new(
	const struct tern_group_config *config, const struct scheduler *scheduler, tern_group **out)
{
	tern_group *group = calloc(1, sizeof(*group));

	if (group)
		group->peers = calloc((size_t)config->boot.nr_ranks, sizeof(*group->peers));
	if (!group || !group->peers) {
		free(group);
		return close_boot(
			&config->boot, fail(TERN_ERR_NOMEM, "no memory for a group of %d ranks",
					       config->boot.nr_ranks));
	}
	group->rank = config->boot.rank;
	group->nr_ranks = config->boot.nr_ranks;
	group->boot = config->boot;
	group->rendezvous = config->rendezvous;
	group->scheduler = scheduler;
	group->wait_ms = config->wait_ms;
	group->silence_ms = config->silence_ms;
	group->elastic = config->elastic != 0;
	group->lifeline = group->own_lifeline = -1;
	for (int r = 0; r < group->nr_ranks; r++)
		group->peers[r].lifeline = group->peers[r].line = -1;
	*out = group;
	return 0;
}

int group_create_scheduled(
	const struct tern_group_config *theirs, const struct scheduler *scheduler, tern_group **out)
{
	struct tern_group_config config;
	tern_group *group = NULL;
	int rc = group_read_config(theirs, scheduler, out, &config);

	if (!rc && !config.boot.allgather && config.boot.nr_ranks > 1)
		rc = close_boot(
			&config.boot, fail(TERN_ERR_INVALID, "boot.allgather is NULL for %d ranks",
					      config.boot.nr_ranks));
	rc = rc ? rc : group_new(&config, scheduler, &group);
	if (rc)
		return rc;
	rc = introduce(group, &config);
	rc = rc ? rc : open_engine(group, &config);
	if (!rc && config.elastic)
		rc = members_open(group);
	if (!rc && config.elastic && config.rendezvous.get)
		rc = group_agree_status(group, door_open(group), "tern_group_config.rendezvous");
	if (rc) {
		group_free(group);
		return rc;
	}
	*out = group;
	return 0;
}

int tern_group_create(const struct tern_group_config *config, tern_group **out)
{
	return group_create_scheduled(config, NULL, out);
}

int tern_group_destroy(tern_group *group)
{
	if (!group)
		return 0;
	if (group->nr_exchanges)
		return fail(
			TERN_ERR_STATE, "the group still has %d exchanges", group->nr_exchanges);
	if (group->nr_engines > (group->engine != NULL))
		return fail(TERN_ERR_STATE, "the group still has %d engines", group->nr_engines);
	group_free(group);
	return 0;
}

bool group_has_died(const tern_group *group, uint32_t rank)
{
	const struct peer *peer = &group->peers[rank];
	struct pollfd pfd = {.fd = peer->lifeline, .events = POLLIN};

	if (group->scheduler)
		return group->scheduler->has_died(group->scheduler->ctx, rank);
	if (death_watch_saw(group, rank)) /* of a process with a GPU some 60 ms sooner */
		return true;
	return peer->lifeline >= 0 && poll(&pfd, 1, 0) == 1 && (pfd.revents & (POLLIN | POLLHUP));
}

void group_kill(const tern_group *group, uint32_t rank)
{
	const struct peer *peer = &group->peers[rank];

	if (peer->lifeline >= 0 && !peer->beside)
		syscall(SYS_pidfd_send_signal, peer->lifeline, SIGKILL, NULL, 0);
}

int tern_group_rank(const tern_group *group)
{
	return group ? group->rank : fail(TERN_ERR_INVALID, "group is NULL");
}

int tern_group_nr_ranks(const tern_group *group)
{
	return group ? group->nr_ranks : fail(TERN_ERR_INVALID, "group is NULL");
}

int tern_group_nr_nodes(const tern_group *group)
{
	return group ? group->nr_nodes : fail(TERN_ERR_INVALID, "group is NULL");
}

static int check_rank(const tern_group *group, int rank)
{
	if (!group)
		return fail(TERN_ERR_INVALID, "group is NULL");
	if (rank < 0 || rank >= group->nr_ranks)
		return fail(TERN_ERR_INVALID, "rank %d of %d", rank, group->nr_ranks);
	return 0;
}

int tern_group_node(const tern_group *group, int rank)
{
	int rc = check_rank(group, rank);

	return rc ? rc : group->peers[rank].node;
}

int tern_group_path(const tern_group *group, int rank)
{
	int rc = check_rank(group, rank);

	return rc ? rc : (int)group->peers[rank].path;
}

const char *tern_group_describe(const tern_group *group)
{
	return group ? group->description : "";
}

int tern_group_allgather(tern_group *group, const void *mine, void *all, size_t bytes)
{
	if (!group || ((!mine || !all) && bytes))
		return fail(TERN_ERR_INVALID, "group, mine or all is NULL");
	return group->members ? members_allgather(group, mine, all, bytes)
			      : group_allgather(group, mine, all, bytes);
}
