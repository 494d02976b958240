/* SPDX-License-Identifier: Apache-2.0 */
/* The same experiment driven through the transfer engine: a stepped engine for each rank, on the
 * simulated network. Between engine and network sits a meter that charges drains to the proxy and
 * measures fence time: the engine itself does not know what a look at a peer would cost elsewhere.
 */
#include "bench/signal/signal.h"
#include "bench/signal/send.h"
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

struct player {
	struct signal_sender sender;
	uint32_t nr_groups, nr_done, nr_failed, nr_expected, nr_immediates, nr_early;
	uint64_t done_ns;
	double nr_transfers;
	uint32_t *tiles; /* [nr_tiles] places whose signals have not come */
	uint32_t nr_tiles;
	uint64_t computed_ns; /* all that have come */
	/* the meter */
	uint64_t put_posted_ns, fence_ns, nr_drains; /* nr_drains: paid for */
};

struct theatre {
	const struct signal_job *job;
	struct sim_network *network;
	struct scheduler scheduler;
	struct player *players;
	struct signal_result *result;
	uint64_t word;    /* this iteration's signal */
	uint64_t tile_ns; /* of compute */
	int rc;
};

static struct theatre *now_playing; /* a transport's calls carry no context */

/* ---- the meter ------------------------------------------------------------------------------- */

/* Drains that the engine has begun and that nobody has paid for: the first signal behind them does.
 */
static bool owes_drain(const struct theatre *theatre, const struct player *player)
{
	struct tern_engine_stats stats = {.size = sizeof(stats)};

	return signal_policy_drains(theatre->job->policy) &&
	       !tern_engine_stats(player->sender.engine, &stats) &&
	       stats.drains > player->nr_drains;
}

static int meter_write(struct transport *transport, const struct transport_write *write)
{
	struct theatre *theatre = now_playing;
	uint32_t rank = sim_rank(transport);
	struct player *player = &theatre->players[rank];
	bool is_signal = write->bytes == WORD_BYTES;
	int rc;

	if (is_signal && owes_drain(theatre, player)) {
		sim_spend(theatre->network, rank, signal_drain_cost(theatre->job));
		player->fence_ns += sim_proxy_free(theatre->network, rank) - player->put_posted_ns;
		player->nr_drains++;
	}
	rc = transport_sim.write(transport, write);
	if (!rc && !is_signal)
		player->put_posted_ns = sim_proxy_free(theatre->network, rank);
	return rc;
}

static struct transport_ops metered;

static int meter_open(const struct transport_options *options, struct transport **transport,
	struct transport_info *info)
{
	int rc = transport_sim.open(options, transport, info);

	if (!rc)
		(*transport)->ops = &metered;
	return rc;
}

/* ---- time ------------------------------------------------------------------------------------ */

static void step_rank(struct theatre *theatre, uint32_t rank)
{
	struct player *player = &theatre->players[rank];

	while (player->sender.engine &&
		engine_step(player->sender.engine, sim_now(theatre->network)))
		;
}

/* Whoever sees the word may read the data: at every moment, not only in the end. */
static void watch(struct theatre *theatre)
{
	uint32_t rank, place;
	uint64_t word;

	for (rank = 0; rank < theatre->job->nr_ranks; rank++) {
		const struct signal_memory *memory = &theatre->players[rank].sender.memory;

		for (place = 0; place < memory->nr_places; place++) {
			memcpy(&word, memory->base + memory->words_at + place * WORD_BYTES,
				WORD_BYTES);
			theatre->result->early += word == theatre->word &&
						  !signal_has_data(theatre->job, memory, place);
		}
	}
}

static void compute_tile(struct theatre *theatre, struct player *player, uint32_t i)
{
	uint64_t at = sim_now(theatre->network);

	player->tiles[i] = player->tiles[--player->nr_tiles];
	player->computed_ns =
		(player->computed_ns > at ? player->computed_ns : at) + theatre->tile_ns;
}

/* Tiles whose words have come; an immediate says itself that it has. */
static void compute(struct theatre *theatre)
{
	uint32_t rank, i;
	uint64_t word;

	for (rank = 0; rank < theatre->job->nr_ranks; rank++) {
		struct player *player = &theatre->players[rank];
		const struct signal_memory *memory = &player->sender.memory;

		for (i = 0; i < player->nr_tiles;) {
			memcpy(&word,
				memory->base + memory->words_at + player->tiles[i] * WORD_BYTES,
				WORD_BYTES);
			if (word == theatre->word)
				compute_tile(theatre, player, i);
			else
				i++;
		}
	}
}

static bool pass_time(struct theatre *theatre)
{
	uint32_t rank;

	if (!sim_step(theatre->network))
		return false;
	if (theatre->tile_ns && theatre->job->policy != SIGNAL_IMM)
		compute(theatre);
	if (theatre->job->watch && theatre->word)
		watch(theatre);
	while (sim_take_ready(theatre->network, &rank))
		step_rank(theatre, rank);
	return true;
}

static uint64_t now(void *ctx)
{
	return sim_now(((struct theatre *)ctx)->network);
}

static void idle(void *ctx, uint64_t until_ns)
{
	struct theatre *theatre = ctx;
	uint32_t rank;

	(void)until_ns;
	for (rank = 0; rank < theatre->job->nr_ranks; rank++)
		step_rank(theatre, rank);
	pass_time(theatre);
}

/* ---- an iteration ---------------------------------------------------------------------------- */

static void group_done(void *ctx, int error, const char *text)
{
	struct player *player = ctx;

	(void)text;
	player->nr_done++;
	player->nr_failed += error != 0;
	player->done_ns = sim_now(now_playing->network);
}

static int took_immediate(void *ctx, uint32_t peer, uint32_t immediate)
{
	struct player *player = ctx;

	(void)peer;
	for (uint32_t i = 0; i < player->nr_tiles; i++)
		if (player->tiles[i] == immediate) {
			compute_tile(now_playing, player, i);
			break;
		}
	player->nr_immediates++;
	player->nr_early += !signal_has_data(now_playing->job, &player->sender.memory, immediate);
	return 1;
}

static int send_all(struct theatre *theatre, uint32_t rank)
{
	struct player *player = &theatre->players[rank];
	struct signal_plan plan;
	uint32_t i;
	int rc;

	if (signal_plan_make(theatre->job, rank, (uint32_t)theatre->word - 1, &plan))
		return TERN_ERR_NOMEM;
	for (i = 0; i < plan.nr; i++) {
		struct player *peer = &theatre->players[plan.transfers[i].peer];

		peer->nr_expected++;
		if (theatre->tile_ns)
			peer->tiles[peer->nr_tiles++] = plan.transfers[i].place;
	}
	player->nr_transfers += plan.nr;
	rc = signal_send(theatre->job, &player->sender, &plan, theatre->word, group_done, player,
		&player->nr_groups);
	signal_plan_free(&plan);
	return rc;
}

static void wipe(struct theatre *theatre)
{
	uint32_t rank;

	for (rank = 0; rank < theatre->job->nr_ranks; rank++) {
		struct player *player = &theatre->players[rank];

		memset(player->sender.memory.base, 0, player->sender.memory.source_at);
		player->nr_expected = player->nr_immediates = player->nr_groups = player->nr_done =
			0;
		player->done_ns = player->computed_ns = sim_now(theatre->network);
		player->nr_tiles = 0;
	}
}

static bool all_done(const struct theatre *theatre)
{
	uint32_t rank;

	for (rank = 0; rank < theatre->job->nr_ranks; rank++)
		if (theatre->players[rank].nr_done < theatre->players[rank].nr_groups)
			return false;
	return true;
}

static void check_rank(struct theatre *theatre, uint32_t rank, uint32_t iter)
{
	const struct signal_job *job = theatre->job;
	struct player *player = &theatre->players[rank];
	struct signal_plan plan;
	uint32_t i;

	if (signal_plan_make(job, rank, iter, &plan)) {
		theatre->rc = TERN_ERR_NOMEM;
		return;
	}
	for (i = 0; i < plan.nr; i++) {
		const struct signal_memory *memory =
			&theatre->players[plan.transfers[i].peer].sender.memory;
		uint64_t word;

		memcpy(&word,
			memory->base + memory->words_at + plan.transfers[i].place * sizeof(word),
			sizeof(word));
		theatre->result->nr_wrong += !signal_has_data(job, memory, plan.transfers[i].place);
		if (job->policy != SIGNAL_PUT_ONLY && job->policy != SIGNAL_IMM)
			theatre->result->nr_wrong += word != iter + 1;
	}
	signal_plan_free(&plan);
	if (job->policy == SIGNAL_IMM)
		theatre->result->nr_wrong += player->nr_immediates != player->nr_expected;
	theatre->result->nr_wrong += player->nr_failed + player->nr_tiles;
}

/* All ranks post at the same moment; what takes time afterwards is the proxies' and the network's.
 */
static void run_iteration(struct theatre *theatre, uint32_t iter, double *us)
{
	uint64_t began = sim_now(theatre->network), latest = began, computed = began;
	uint32_t rank;

	wipe(theatre);
	theatre->word = iter + 1;
	for (rank = 0; rank < theatre->job->nr_ranks && !theatre->rc; rank++)
		theatre->rc = send_all(theatre, rank);
	for (rank = 0; rank < theatre->job->nr_ranks && !theatre->rc; rank++)
		step_rank(theatre, rank);
	while (!theatre->rc && !all_done(theatre))
		if (!pass_time(theatre))
			theatre->rc = TERN_ERR_TIMEOUT;
	while (!theatre->rc && pass_time(theatre)) /* immediates may come after the writer's
						      completions */
		;
	for (rank = 0; rank < theatre->job->nr_ranks; rank++) {
		if (theatre->players[rank].done_ns > latest)
			latest = theatre->players[rank].done_ns;
		if (theatre->players[rank].computed_ns > computed)
			computed = theatre->players[rank].computed_ns;
		check_rank(theatre, rank, iter);
	}
	*us = (double)(latest - began) * 1e-3;
	if (theatre->tile_ns)
		theatre->result->layer_us +=
			(double)((computed > latest ? computed : latest) - began) * 1e-3 /
			theatre->job->iters;
}

/* ---- setting up ------------------------------------------------------------------------------ */

static uint32_t power_above(uint32_t n)
{
	uint32_t power = 1024;

	while (power < n)
		power *= 2;
	return power;
}

static int open_player(struct theatre *theatre, uint32_t rank)
{
	const struct signal_job *job = theatre->job;
	struct player *player = &theatre->players[rank];
	struct engine_setup setup = {.self = rank,
		.nr_peers = job->nr_ranks,
		.nr_networks = 1,
		.networks = {{.ops = &metered, .simulated = theatre->network, .nr_nics = 1}},
		.scheduler = &theatre->scheduler};
	struct tern_engine_config config;

	player->sender.remotes = calloc(job->nr_ranks, sizeof(tern_remote *));
	if (!player->sender.remotes || signal_memory_make(job, &player->sender.memory))
		return TERN_ERR_NOMEM;
	player->tiles = calloc(player->sender.memory.nr_places, sizeof(*player->tiles));
	if (!player->tiles)
		return TERN_ERR_NOMEM;
	tern_engine_config_init(&config);
	config.ring_entries = power_above(2 * job->concurrency + 64);
	config.nr_operations = 4096;
	config.depth = 4096;
	config.peer_depth = 4096;
	config.heartbeat_ms = 0;
	config.immediate = took_immediate;
	config.immediate_ctx = player;
	return engine_open(&config, &setup, &player->sender.engine);
}

static int connect_all(struct theatre *theatre)
{
	uint32_t rank, nr = theatre->job->nr_ranks;
	struct engine_address *all = calloc(nr, sizeof(*all));
	int rc = all ? 0 : TERN_ERR_NOMEM;

	for (rank = 0; rank < nr && !rc; rank++)
		rc = engine_address(theatre->players[rank].sender.engine, &all[rank]);
	for (rank = 0; rank < nr && !rc; rank++)
		rc = engine_connect(theatre->players[rank].sender.engine, all);
	free(all);
	return rc;
}

static int share_memory(struct theatre *theatre)
{
	uint32_t a, b, nr = theatre->job->nr_ranks;
	struct tern_descriptor descriptor;
	int rc = 0;

	for (b = 0; b < nr && !rc; b++) {
		struct player *player = &theatre->players[b];

		rc = tern_engine_register(player->sender.engine, player->sender.memory.base,
			player->sender.memory.bytes, &player->sender.region);
		if (!rc)
			rc = tern_region_descriptor(player->sender.region, &descriptor);
		for (a = 0; a < nr && !rc; a++)
			rc = tern_engine_import(theatre->players[a].sender.engine, &descriptor,
				&theatre->players[a].sender.remotes[b]);
	}
	return rc;
}

/* Of what a rank computes, for a transfer of the first iteration. Without signals nobody knows when
 * to begin. */
static int find_tile(struct theatre *theatre)
{
	const struct signal_job *job = theatre->job;
	uint64_t nr = 0;

	if (!job->compute_ns || job->policy == SIGNAL_PUT_ONLY)
		return 0;
	for (uint32_t rank = 0; rank < job->nr_ranks; rank++) {
		struct signal_plan plan;

		if (signal_plan_make(job, rank, 0, &plan))
			return TERN_ERR_NOMEM;
		nr += plan.nr;
		signal_plan_free(&plan);
	}
	theatre->tile_ns = nr ? job->compute_ns * job->nr_ranks / nr : 0;
	return 0;
}

static int open_theatre(struct theatre *theatre)
{
	struct sim_settings settings = theatre->job->network;
	uint32_t rank;
	int rc;

	settings.seed = theatre->job->seed;
	settings.ranks_per_node = theatre->job->ranks_per_node;
	metered = transport_sim;
	metered.open = meter_open;
	metered.write = meter_write;
	now_playing = theatre;
	theatre->scheduler = (struct scheduler){.ctx = theatre, .now = now, .idle = idle};
	theatre->players = calloc(theatre->job->nr_ranks, sizeof(*theatre->players));
	if (!theatre->players)
		return TERN_ERR_NOMEM;
	rc = sim_network_create(&settings, &theatre->network);
	for (rank = 0; rank < theatre->job->nr_ranks && !rc; rank++)
		rc = open_player(theatre, rank);
	if (!rc)
		rc = connect_all(theatre);
	return rc ? rc : share_memory(theatre);
}

static void close_theatre(struct theatre *theatre)
{
	uint32_t rank;

	for (rank = 0; theatre->players && rank < theatre->job->nr_ranks; rank++) {
		tern_engine *engine = theatre->players[rank].sender.engine;

		theatre->players[rank].sender.engine = NULL; /* not to be stepped by others that
								wait */
		if (engine)
			tern_engine_destroy(engine);
	}
	for (rank = 0; theatre->players && rank < theatre->job->nr_ranks; rank++) {
		free(theatre->players[rank].sender.remotes);
		free(theatre->players[rank].tiles);
		signal_memory_free(&theatre->players[rank].sender.memory);
	}
	sim_network_destroy(theatre->network);
	free(theatre->players);
	now_playing = NULL;
}

static void sum_up(struct theatre *theatre, const double *us)
{
	struct signal_result *result = theatre->result;
	double per = 1.0 / ((theatre->job->one_sender ? 1 : theatre->job->nr_ranks) *
				   (double)theatre->job->iters);
	struct sim_stats stats;
	uint32_t i;

	sim_stats(theatre->network, &stats);
	for (i = 0; i < theatre->job->iters; i++) {
		result->time_us += us[i] / theatre->job->iters;
		result->min_us = !i || us[i] < result->min_us ? us[i] : result->min_us;
		result->max_us = us[i] > result->max_us ? us[i] : result->max_us;
	}
	for (i = 0; i < theatre->job->nr_ranks; i++) {
		result->transfers += theatre->players[i].nr_transfers * per;
		result->fence_us += (double)theatre->players[i].fence_ns * 1e-3 * per;
		result->drains += (double)theatre->players[i].nr_drains * per;
		result->early += theatre->players[i].nr_early;
	}
	result->writes = (double)stats.writes * per;
	result->fences_waited = (double)stats.fences_waited * per;
	result->trace = sim_trace_hash(theatre->network);
}

int signal_simulate_engine(
	const struct signal_job *job, struct signal_result *result, struct reason *why)
{
	struct theatre theatre = {.job = job, .result = result};
	double *us = calloc(job->iters, sizeof(*us));
	uint32_t i;

	memset(result, 0, sizeof(*result));
	theatre.rc = us ? find_tile(&theatre) : TERN_ERR_NOMEM;
	theatre.rc = theatre.rc ? theatre.rc : open_theatre(&theatre);
	for (i = 0; i < job->iters && !theatre.rc; i++)
		run_iteration(&theatre, i, &us[i]);
	if (!theatre.rc)
		sum_up(&theatre, us);
	else
		refuse(why, "%s: %s", tern_strerror(theatre.rc), tern_last_error());
	close_theatre(&theatre);
	free(us);
	return theatre.rc;
}
