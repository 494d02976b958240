/* SPDX-License-Identifier: Apache-2.0 */
/* The policies written out over the bare transport: each rank's proxy is given a list of steps, and
 * takes them one by one in virtual time. */
#include "bench/signal/signal.h"

#include <stdlib.h>
#include <string.h>

enum step_kind {
	STEP_PUT,
	STEP_SIGNAL,
	STEP_DRAIN /* of one peer, or with EVERYBODY of all */
};

#define EVERYBODY UINT32_MAX

struct step {
	enum step_kind kind;
	uint32_t peer, place, flags;
};

struct proxy {
	struct transport *transport;
	struct transport_region *region;
	struct transport_key key;
	struct signal_memory memory;
	struct step *steps;
	uint32_t nr_steps, at, nr_transfers;
	uint32_t nr_under_way, *under_way_to; /* [rank] */
	uint64_t word;                        /* this iteration's signal: sent from here, inline */
	uint32_t nr_expected, nr_immediates;
	bool draining;
	uint64_t drain_began_ns, fence_ns, done_ns, nr_drains;
};

struct stage {
	const struct signal_job *job;
	struct sim_network *network;
	struct proxy *proxies;
	struct signal_result *result;
	int rc;
};

/* ---- a policy is an order of steps ----------------------------------------------------------- */

static void add(struct proxy *proxy, enum step_kind kind, const struct signal_transfer *transfer,
	uint32_t flags)
{
	proxy->steps[proxy->nr_steps++] = (struct step){
		.kind = kind, .peer = transfer->peer, .place = transfer->place, .flags = flags};
}

/* One transfer after the other. */
static void steps_single(
	struct proxy *proxy, enum signal_policy policy, const struct signal_plan *plan)
{
	uint32_t i;

	for (i = 0; i < plan->nr; i++) {
		add(proxy, STEP_PUT, &plan->transfers[i],
			policy == SIGNAL_IMM ? WRITE_IMMEDIATE : 0);
		if (policy == SIGNAL_PUT_ONLY || policy == SIGNAL_IMM)
			continue;
		if (signal_policy_drains(policy))
			add(proxy, STEP_DRAIN, &plan->transfers[i], 0);
		add(proxy, STEP_SIGNAL, &plan->transfers[i],
			policy == SIGNAL_NIC_FENCE ? WRITE_FENCE : 0);
	}
}

/* A group's puts, then its signals. Each peer has its own fence: the first signal to it. */
static void steps_grouped(
	struct proxy *proxy, enum signal_policy policy, const struct signal_plan *plan)
{
	struct signal_transfer everybody = {.peer = EVERYBODY};
	uint32_t i, from = 0, to;

	for (; from < plan->nr; from = to) {
		for (to = from; !plan->transfers[to].last_of_group; to++)
			add(proxy, STEP_PUT, &plan->transfers[to], 0);
		add(proxy, STEP_PUT, &plan->transfers[to++], 0);
		if (policy == SIGNAL_DECOUPLED)
			add(proxy, STEP_DRAIN, &everybody, 0);
		for (i = from; i < to; i++)
			add(proxy, STEP_SIGNAL, &plan->transfers[i],
				policy == SIGNAL_PERSEUS && plan->transfers[i].first ? WRITE_FENCE
										     : 0);
	}
}

static int make_steps(struct stage *stage, uint32_t rank, uint32_t iter)
{
	struct proxy *proxy = &stage->proxies[rank];
	struct signal_plan plan;
	uint32_t i;

	if (signal_plan_make(stage->job, rank, iter, &plan))
		return -1;
	proxy->nr_steps = proxy->at = 0;
	proxy->nr_transfers = plan.nr;
	proxy->word = iter + 1;
	if (signal_policy_groups(stage->job->policy))
		steps_grouped(proxy, stage->job->policy, &plan);
	else
		steps_single(proxy, stage->job->policy, &plan);
	for (i = 0; i < plan.nr; i++)
		stage->proxies[plan.transfers[i].peer].nr_expected++;
	signal_plan_free(&plan);
	return 0;
}

/* ---- the proxy's loop ------------------------------------------------------------------------ */

static int post(struct stage *stage, struct proxy *proxy, const struct step *step)
{
	const struct signal_job *job = stage->job;
	const struct signal_memory *memory = &proxy->memory;
	uint64_t data_at = signal_data_at(job, memory, step->place);
	struct transport_write write = {.peer = step->peer,
		.flags = step->flags | WRITE_SIGNALLED,
		.immediate = step->place,
		.key = &stage->proxies[step->peer].key,
		.cookie = step->peer};

	if (step->kind == STEP_PUT) {
		write.region = proxy->region;
		write.from = memory->base + memory->source_at + data_at;
		write.offset = data_at;
		write.bytes = job->bytes;
	} else {
		write.flags |= WRITE_INLINE;
		write.from = &proxy->word;
		write.offset = memory->words_at + step->place * sizeof(uint64_t);
		write.bytes = sizeof(uint64_t);
	}
	return transport_sim.write(proxy->transport, &write);
}

/* True when the proxy may go on. */
static bool drain(struct stage *stage, struct proxy *proxy, uint32_t rank, uint32_t peer)
{
	if (!proxy->draining) {
		proxy->draining = true;
		proxy->drain_began_ns = sim_proxy_free(stage->network, rank);
	}
	if (peer == EVERYBODY ? proxy->nr_under_way : proxy->under_way_to[peer])
		return false;
	sim_spend(stage->network, rank, signal_drain_cost(stage->job));
	proxy->fence_ns += sim_proxy_free(stage->network, rank) - proxy->drain_began_ns;
	proxy->draining = false;
	proxy->nr_drains++;
	return true;
}

static void take_steps(struct stage *stage, uint32_t rank)
{
	struct proxy *proxy = &stage->proxies[rank];

	for (; proxy->at < proxy->nr_steps && !stage->rc; proxy->at++) {
		const struct step *step = &proxy->steps[proxy->at];
		int rc;

		if (step->kind == STEP_DRAIN) {
			if (!drain(stage, proxy, rank, step->peer))
				return;
			continue;
		}
		rc = post(stage, proxy, step);
		if (rc == TRANSPORT_AGAIN)
			return; /* the step is kept whole, its fence too */
		stage->rc = rc;
		proxy->nr_under_way++;
		proxy->under_way_to[step->peer]++;
	}
}

static void take_events(struct stage *stage, uint32_t rank)
{
	struct proxy *proxy = &stage->proxies[rank];
	struct transport_event events[16];
	int i, nr;

	while ((nr = transport_sim.poll(proxy->transport, events, 16)) > 0)
		for (i = 0; i < nr; i++) {
			if (events[i].kind == EVENT_IMMEDIATE) {
				proxy->nr_immediates++;
				stage->result->early += !signal_has_data(
					stage->job, &proxy->memory, events[i].immediate);
				continue;
			}
			proxy->nr_under_way--;
			proxy->under_way_to[events[i].cookie]--;
			proxy->done_ns = sim_now(stage->network);
		}
	if (nr < 0)
		stage->rc = nr;
}

/* ---- iterations ------------------------------------------------------------------------------ */

static void check_rank(struct stage *stage, uint32_t rank, uint32_t iter)
{
	struct signal_result *result = stage->result;
	const struct signal_job *job = stage->job;
	struct signal_plan plan;
	uint32_t i;

	if (signal_plan_make(job, rank, iter, &plan)) {
		stage->rc = TERN_ERR_NOMEM;
		return;
	}
	for (i = 0; i < plan.nr; i++) {
		const struct signal_memory *memory = &stage->proxies[plan.transfers[i].peer].memory;
		uint64_t word;

		memcpy(&word,
			memory->base + memory->words_at + plan.transfers[i].place * sizeof(word),
			sizeof(word));
		result->nr_wrong += !signal_has_data(job, memory, plan.transfers[i].place);
		if (job->policy != SIGNAL_PUT_ONLY && job->policy != SIGNAL_IMM)
			result->nr_wrong += word != iter + 1;
	}
	signal_plan_free(&plan);
	if (job->policy == SIGNAL_IMM)
		result->nr_wrong +=
			stage->proxies[rank].nr_immediates != stage->proxies[rank].nr_expected;
}

static void wipe(struct stage *stage)
{
	uint32_t rank;

	for (rank = 0; rank < stage->job->nr_ranks; rank++) {
		struct proxy *proxy = &stage->proxies[rank];

		memset(proxy->memory.base, 0, proxy->memory.source_at);
		proxy->nr_expected = proxy->nr_immediates = 0;
		proxy->done_ns = sim_now(stage->network);
	}
}

static void run_iteration(struct stage *stage, uint32_t iter, double *us)
{
	uint64_t began = sim_now(stage->network), latest = began;
	uint32_t rank, nr = stage->job->nr_ranks;

	wipe(stage);
	for (rank = 0; rank < nr && !stage->rc; rank++)
		if (make_steps(stage, rank, iter))
			stage->rc = TERN_ERR_NOMEM;
	for (rank = 0; rank < nr; rank++)
		take_steps(stage, rank);
	while (!stage->rc && sim_step(stage->network))
		while (sim_take_ready(stage->network, &rank)) {
			take_events(stage, rank);
			take_steps(stage, rank);
		}
	for (rank = 0; rank < nr; rank++) {
		if (stage->proxies[rank].done_ns > latest)
			latest = stage->proxies[rank].done_ns;
		check_rank(stage, rank, iter);
	}
	*us = (double)(latest - began) * 1e-3;
}

/* ---- setting up ------------------------------------------------------------------------------ */

static int open_proxy(struct stage *stage, uint32_t rank)
{
	const struct signal_job *job = stage->job;
	struct proxy *proxy = &stage->proxies[rank];
	struct transport_options options = {
		.network = stage->network, .self = rank, .nr_peers = job->nr_ranks};
	struct transport_info info;
	int rc;

	proxy->under_way_to = calloc(job->nr_ranks, sizeof(*proxy->under_way_to));
	proxy->steps = calloc((size_t)3 * job->concurrency, sizeof(*proxy->steps));
	if (!proxy->under_way_to || !proxy->steps || signal_memory_make(job, &proxy->memory))
		return TERN_ERR_NOMEM;
	rc = transport_sim.open(&options, &proxy->transport, &info);
	if (rc)
		return rc;
	return transport_sim.reg(proxy->transport, proxy->memory.base, proxy->memory.bytes,
		&proxy->region, &proxy->key);
}

static int connect_all(struct stage *stage)
{
	uint32_t a, b, bytes;
	char address[TRANSPORT_ADDRESS_BYTES];
	int rc = 0;

	for (b = 0; b < stage->job->nr_ranks && !rc; b++) {
		bytes = sizeof(address);
		rc = transport_sim.address(stage->proxies[b].transport, address, &bytes);
		for (a = 0; a < stage->job->nr_ranks && !rc; a++)
			rc = transport_sim.connect(stage->proxies[a].transport, b, address, bytes);
	}
	return rc;
}

static int open_stage(struct stage *stage)
{
	struct sim_settings settings = stage->job->network;
	uint32_t rank;
	int rc;

	settings.seed = stage->job->seed;
	settings.ranks_per_node = stage->job->ranks_per_node;
	stage->proxies = calloc(stage->job->nr_ranks, sizeof(*stage->proxies));
	if (!stage->proxies)
		return TERN_ERR_NOMEM;
	rc = sim_network_create(&settings, &stage->network);
	for (rank = 0; rank < stage->job->nr_ranks && !rc; rank++)
		rc = open_proxy(stage, rank);
	return rc ? rc : connect_all(stage);
}

static void close_stage(struct stage *stage)
{
	uint32_t rank;

	for (rank = 0; stage->proxies && rank < stage->job->nr_ranks; rank++) {
		struct proxy *proxy = &stage->proxies[rank];

		if (proxy->transport)
			transport_sim.close(proxy->transport);
		free(proxy->under_way_to);
		free(proxy->steps);
		signal_memory_free(&proxy->memory);
	}
	sim_network_destroy(stage->network);
	free(stage->proxies);
}

static void sum_up(struct stage *stage, const double *us)
{
	struct signal_result *result = stage->result;
	double nr_senders = stage->job->one_sender ? 1 : stage->job->nr_ranks,
	       per = 1 / (nr_senders * stage->job->iters);
	struct sim_stats stats;
	uint32_t i;

	sim_stats(stage->network, &stats);
	for (i = 0; i < stage->job->iters; i++) {
		result->time_us += us[i] / stage->job->iters;
		result->min_us = !i || us[i] < result->min_us ? us[i] : result->min_us;
		result->max_us = us[i] > result->max_us ? us[i] : result->max_us;
	}
	for (i = 0; i < stage->job->nr_ranks; i++) {
		result->fence_us += (double)stage->proxies[i].fence_ns * 1e-3 * per;
		result->drains += (double)stage->proxies[i].nr_drains * per;
	}
	result->writes = (double)stats.writes * per;
	result->fences_waited = (double)stats.fences_waited * per;
	result->trace = sim_trace_hash(stage->network);
}

int signal_simulate_steps(
	const struct signal_job *job, struct signal_result *result, struct reason *why)
{
	struct stage stage = {.job = job, .result = result};
	double *us = calloc(job->iters, sizeof(*us));
	uint32_t i, rank;

	memset(result, 0, sizeof(*result));
	stage.rc = us ? open_stage(&stage) : TERN_ERR_NOMEM;
	for (i = 0; i < job->iters && !stage.rc; i++) {
		run_iteration(&stage, i, &us[i]);
		for (rank = 0; rank < job->nr_ranks; rank++)
			result->transfers +=
				stage.proxies[rank].nr_transfers /
				((double)job->iters * (job->one_sender ? 1 : job->nr_ranks));
	}
	if (!stage.rc)
		sum_up(&stage, us);
	else
		refuse(why, "%s: %s", tern_strerror(stage.rc), tern_last_error());
	close_stage(&stage);
	free(us);
	return stage.rc;
}
