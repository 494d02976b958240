/* SPDX-License-Identifier: Apache-2.0 */
/* A rank is killed, or stands still and wakes, while others copy experts from it: they go on with
 * others, no place says that it holds what it does not, and nothing that comes late spoils it. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "tern_weights.h"
#include "tests/faults/acts.h"

#define RANKS 4
#define VICTIM 2
#define LOCAL 4u /* two experts of its own, two places to fill */
#define EXPERTS 8u
#define BYTES (1u << 20)
#define PAGE (64u << 10)
#define MIDDLE (2 * BYTES - 5 * PAGE) /* left to come */
#define WAIT 60000
#define SILENCE 2000 /* ms; of who stands still, not of who is late. A death is told without */

static const char *transport;
static int fate; /* SIGKILL or SIGSTOP */
static bool at_once;

struct holder {
	struct rank *rank;
	struct scene *scene;
	tern_engine *engine;
	tern_weight_store *store;
	uint8_t *memory; /* [LOCAL][BYTES] */
	uint8_t *due;    /* [BYTES] */
	int32_t at[RANKS * LOCAL];
	pid_t pids[RANKS];
};

/* Other words at each place of each expert. */
static void draw(int32_t expert, uint8_t *to)
{
	for (uint64_t i = 0; i < BYTES / 8; i++) {
		uint64_t word =
			((uint64_t)expert + 1) * 0x9e3779b97f4a7c15u + i * 0xd1b54a32d192ed03u;

		memcpy(to + i * 8, &word, sizeof(word));
	}
}

static void check(struct holder *h, uint32_t local, int32_t expert)
{
	draw(expert, h->due);
	if (memcmp(h->due, h->memory + local * BYTES, BYTES))
		rank_fails(h->rank, "place %u is not expert %d", local, expert);
}

static int open_holder(struct holder *h)
{
	struct tern_weights_part part = {h->memory, BYTES, 0};
	struct tern_weights_config config = {.size = sizeof(config),
		.nr_layers = 1,
		.nr_experts = EXPERTS,
		.nr_physical = RANKS * LOCAL,
		.nr_parts = 1,
		.parts = &part,
		.nr_backups = 4,
		.page_bytes = PAGE,
		.window = 3,
		.silence_ms = fate == SIGSTOP ? SILENCE : WAIT,
		.rate = 0};
	struct tern_engine_config engine;
	uint64_t ticket;
	int rc;

	tern_engine_config_init(&engine);
	engine.transport = transport;
	engine.timeout_ms = 3000;
	rc = tern_engine_create(h->rank->group, &engine, &h->engine);
	if (!rc)
		rc = tern_weights_create(h->engine, &config, &h->store);
	for (uint32_t p = 0; p < RANKS * LOCAL; p++)
		h->at[p] = p % LOCAL < 2 ? (int32_t)(p / LOCAL * 2 + p % LOCAL) : -1;
	for (uint32_t i = 0; i < 2 && !rc; i++) {
		draw(h->rank->rank * 2 + (int32_t)i, h->memory + i * BYTES);
		rc = tern_weights_hold(h->store, 0, (uint32_t)h->rank->rank * LOCAL + i,
			h->rank->rank * 2 + (int32_t)i);
	}
	if (!rc)
		rc = tern_weights_use(h->store, 0, h->at);
	if (!rc) /* all hold what they have before anybody asks for it */
		rc = tern_group_allgather(h->rank->group, "", (char[RANKS]){0}, 1);
	if (!rc)
		rc = tern_weights_backup(h->store, 0, h->at, NULL, &ticket);
	if (!rc)
		rc = tern_weights_wait(h->store, ticket, WAIT, NULL);
	return rc ? rc
		  : tern_group_allgather(
			    h->rank->group, &(pid_t){getpid()}, h->pids, sizeof(pid_t));
}

/* It serves, and does nothing else. */
static void be_the_victim(struct holder *h)
{
	while (!atomic_load(&h->scene->nr_told))
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* Nobody polls until the victim is no more: so of each rank's pages no more than a window's come
 * from it, and it is the source that each has to pass over. Who began later would not ask it. */
static void meet_in_the_middle(struct holder *h)
{
	struct scene *s = h->scene;

	atomic_fetch_add(&s->nr_ready, 1);
	if (h->rank->rank == 0) {
		while (atomic_load(&s->nr_ready) < RANKS - 1)
			nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
		kill(h->pids[VICTIM], fate);
		await_standstill(h->pids[VICTIM]);
		atomic_store(&s->fate_ns, now_ns());
	}
	while (!atomic_load(&s->fate_ns))
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

/* Both experts of the victim's, from it; in the middle of the first the victim meets its fate. */
static void copy_from_victim(struct holder *h)
{
	const int32_t first = (int32_t)h->rank->rank * (int32_t)LOCAL + 2;
	const struct tern_copy copies[] = {{VICTIM * 2, VICTIM * LOCAL, first},
		{VICTIM * 2 + 1, VICTIM * LOCAL + 1, first + 1}};
	struct tern_weights_progress progress = {.size = sizeof(progress)};
	struct tern_weights_stats stats = {.size = sizeof(stats)};
	int32_t held[RANKS * LOCAL];
	bool seen[2] = {false};
	uint64_t ticket;
	int rc = tern_weights_move(h->store, 0, copies, 2, &ticket);

	if (rc)
		rank_fails(h->rank, "move: %s", tern_last_error());
	while (!rc && (rc = tern_weights_poll(h->store, ticket, &progress)) == TERN_ERR_TIMEOUT) {
		rc = 0;
		if (progress.bytes_left > MIDDLE)
			continue;
		if (!atomic_load(&h->scene->fate_ns))
			meet_in_the_middle(h);
		if (tern_weights_held(h->store, 0, held))
			rank_fails(h->rank, "held: %s", tern_last_error());
		for (int i = 0; i < 2; i++)
			if (!seen[i] && held[first + i] >= 0) {
				check(h, 2 + (uint32_t)i, VICTIM * 2 + i);
				seen[i] = true;
			}
		nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
	}
	if (rc)
		rank_fails(h->rank, "the move ended with %d: %s", rc, tern_last_error());
	check(h, 2, VICTIM * 2);
	check(h, 3, VICTIM * 2 + 1);
	if (tern_weights_stats(h->store, &stats) || !stats.sources_left)
		rank_fails(h->rank, "nobody was passed over");
}

/* Those that are left make a view, tell each other what they hold, and use it. */
static void use_what_is_held(struct holder *h)
{
	int32_t held[RANKS * LOCAL], all[RANKS][RANKS * LOCAL], logical[RANKS * LOCAL];
	struct tern_view view = {.size = sizeof(view)};
	int rc;

	if (tern_weights_held(h->store, 0, held))
		rank_fails(h->rank, "held: %s", tern_last_error());
	while ((rc = tern_group_allgather(h->rank->group, held, all, sizeof(held))) ==
		TERN_ERR_MEMBERS)
		if (tern_group_view_change(h->rank->group, &view))
			rank_fails(h->rank, "view: %s", tern_last_error());
	for (uint32_t p = 0; p < RANKS * LOCAL; p++)
		logical[p] = p / LOCAL == VICTIM ? -1 : all[p / LOCAL][p];
	if (rc || tern_weights_use(h->store, 0, logical))
		rank_fails(h->rank, "use: %s", tern_last_error());
	for (int r = 0; r < RANKS; r++)
		if (r != VICTIM &&
			(logical[r * 4 + 2] != VICTIM * 2 || logical[r * 4 + 3] != VICTIM * 2 + 1))
			rank_fails(h->rank, "rank %d holds %d and %d", r, logical[r * 4 + 2],
				logical[r * 4 + 3]);
}

/* Backups of all are made again without it, and every expert has one or is served twice. */
static void back_up_again(struct holder *h)
{
	static const uint8_t alive[RANKS] = {1, 1, 0, 1};
	const uint64_t end = now_ns() + WAIT * 1000000ull;
	int32_t logical[RANKS * LOCAL];
	uint64_t ticket;
	int rc;

	for (uint32_t p = 0; p < RANKS * LOCAL; p++)
		logical[p] = p / LOCAL == VICTIM ? -1 : h->at[p];
	/* Word that another's copy has ended may still be on its way. */
	while ((rc = tern_weights_backup(h->store, 0, logical, alive, &ticket)) == TERN_ERR_STATE &&
		now_ns() < end)
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	if (!rc)
		rc = tern_weights_wait(h->store, ticket, WAIT, NULL);
	if (rc)
		rank_fails(h->rank, "backups: %d, %s", rc, tern_last_error());
	if (tern_group_allgather(h->rank->group, "", (char[RANKS]){0}, 1)) /* and then leave */
		rank_fails(h->rank, "%s", tern_last_error());
}

static void wake_it(struct holder *h)
{
	for (int i = 0; i < 2; i++)
		check(h, 2 + (uint32_t)i, VICTIM * 2 + i);
	if (tern_group_allgather(h->rank->group, "", (char[RANKS]){0}, 1))
		rank_fails(h->rank, "%s", tern_last_error());
	/* What it had begun before it stood still has come by now. */
	for (int i = 0; i < 2; i++)
		check(h, 2 + (uint32_t)i, VICTIM * 2 + i);
}

/* It would ask the victim first. */
static void ask_no_dead(struct holder *h)
{
	const int32_t expert = (VICTIM + 1) * 2, to = h->rank->rank * (int32_t)LOCAL + 2;
	const struct tern_copy copies[] = {{expert, -1, to}, {expert + 1, -1, to + 1}};
	struct tern_weights_stats before = {.size = sizeof(before)}, after = before;
	uint64_t ticket;
	int rc = tern_weights_stats(h->store, &before);

	rc = rc ? rc : tern_weights_move(h->store, 0, copies, 2, &ticket);
	rc = rc ? rc : tern_weights_wait(h->store, ticket, WAIT, NULL);
	rc = rc ? rc : tern_weights_stats(h->store, &after);
	if (rc)
		rank_fails(h->rank, "expert %d: %d, %s", expert, rc, tern_last_error());
	check(h, 2, expert);
	check(h, 3, expert + 1);
	if (after.sources_left != before.sources_left)
		rank_fails(h->rank, "a rank was asked that is gone");
}

/* Whom the view has left out is not asked, also where the network has not noticed yet. */
static void go_on_at_once(struct holder *h)
{
	struct tern_view view = {.size = sizeof(view)};

	if (h->rank->rank == 0)
		kill(h->pids[VICTIM], SIGKILL);
	while (!view.number)
		if (tern_group_view_change(h->rank->group, &view)) {
			rank_fails(h->rank, "view: %s", tern_last_error());
			return;
		}
	if (h->rank->rank == VICTIM - 1)
		ask_no_dead(h);
	if (tern_group_allgather(h->rank->group, "", (char[RANKS]){0}, 1))
		rank_fails(h->rank, "%s", tern_last_error());
}

static void body(struct rank *rank)
{
	struct holder h = {.rank = rank,
		.scene = rank->ctx,
		.memory = malloc(LOCAL * BYTES),
		.due = malloc(BYTES)};

	if (join(rank, &h.scene->first, rank->rank))
		return;
	if (open_holder(&h)) {
		rank_fails(rank, "%s", tern_last_error());
		return;
	}
	if (rank->rank == VICTIM)
		be_the_victim(&h);
	else if (at_once)
		go_on_at_once(&h);
	else
		copy_from_victim(&h);
	if (fate == SIGSTOP && rank->rank != VICTIM &&
		atomic_fetch_add(&h.scene->nr_past, 1) + 1 == RANKS - 1) {
		atomic_store(&h.scene->nr_told, 1);
		kill(h.pids[VICTIM], SIGCONT);
	}
	if (fate == SIGSTOP)
		rank->rank == VICTIM
			? (void)tern_group_allgather(rank->group, "", (char[RANKS]){0}, 1)
			: wake_it(&h);
	if (fate == SIGKILL && !at_once) {
		use_what_is_held(&h);
		back_up_again(&h);
	}
	if (tern_weights_destroy(h.store) || tern_engine_destroy(h.engine) ||
		tern_group_destroy(rank->group))
		rank_fails(rank, "%s", tern_last_error());
	free(h.memory);
	free(h.due);
}

static void play(const char *network, int what)
{
	struct scene *s;

	if (!transport_is_there(network)) {
		print_message("# SKIP %s\n", tern_last_error());
		skip();
	}
	s = scene_open(RANKS, TERN_LOW_LATENCY);
	transport = network;
	fate = what;
	s->victim = VICTIM;
	s->elastic = what == SIGKILL;
	scene_play(s, body, what == SIGKILL ? SIGKILL : 0);
}

static void killed(void **state)
{
	(void)state;
	play("shm", SIGKILL);
}

/* A network that notices late. */
static void gone_and_not_asked(void **state)
{
	(void)state;
	at_once = true;
	play("ofi:tcp;ofi_rxm", SIGKILL);
	at_once = false;
}

static void stopped(void **state)
{
	(void)state;
	play("shm", SIGSTOP);
}

static void killed_over_libfabric(void **state)
{
	(void)state;
	play("ofi:tcp;ofi_rxm", SIGKILL);
}

static void stopped_over_libfabric(void **state)
{
	(void)state;
	play("ofi:tcp;ofi_rxm", SIGSTOP);
}

/* test_weights [PATTERN]: those of that name. */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(killed),
		cmocka_unit_test(stopped),
		cmocka_unit_test(killed_over_libfabric),
		cmocka_unit_test(stopped_over_libfabric),
		cmocka_unit_test(gone_and_not_asked),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
