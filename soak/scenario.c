/* SPDX-License-Identifier: Apache-2.0 */
#include "soak/scenario.h"

#include <stdio.h>
#include <string.h>

#include "testkit/draw.h"
#include "testkit/random.h"
#include "testkit/words.h"

const char *const soak_fault_names[] = {"none", "kill", "cut", "drawn"};
const char *const soak_phase_names[] = {
	"dispatch_send", "dispatch_recv", "combine_send", "combine_recv", "any", "drawn"};

#define MS 1000000ull
#define LONG_WAIT_MS 1500

static uint32_t draw(uint64_t *state, uint32_t below)
{
	return random_below(state, below);
}

/* ---- network and engine ---------------------------------------------------------------------- */

static void draw_network(uint64_t *state, struct sim_settings *network)
{
	if (draw(state, 4))
		sim_settings_foul(network, random_next(state));
	else
		sim_settings_init(network);
	network->seed = random_next(state);
	network->near = network->far;
	network->near.latency_ns /= 4;
	network->message_bytes = 1024;
	network->ordered = draw(state, 4) == 0;
	network->fence = draw(state, 3) == 0;
	network->target_polls = draw(state, 3) == 0;
	network->sees_death = draw(state, 2);
	network->write_bytes = draw(state, 3) ? 1u << 30 : 64u << draw(state, 8);
	network->poison = true;
	network->nic.poll_ns = draw(state, 2) * draw(state, 300);
	network->nic.post_ns = draw(state, 2) * draw(state, 500);
}

static void draw_engine(uint64_t *state, struct tern_engine_config *engine)
{
	static const int timeouts_ms[] = {60, 200, 1000};

	tern_engine_config_init(engine);
	engine->ring_entries = 16u << draw(state, 6);
	engine->nr_operations = 64;
	engine->depth = 1u << draw(state, 9);
	engine->peer_depth = 1u << draw(state, 7);
	engine->message_bytes = 64;
	engine->message_credits = 1 + draw(state, 8);
	engine->nr_nics = 1 + (draw(state, 4) == 0);
	engine->stripe_bytes = draw(state, 2) ? 256u << 10 : 128u << draw(state, 6);
	engine->timeout_ms = timeouts_ms[draw(state, 3)];
	engine->wait_ms = 2000;
}

/* ---- faults ---------------------------------------------------------------------------------- */

static uint64_t draw_delay(uint64_t *state)
{
	return draw(state, 3) == 0 ? 0 : random_next(state) % (1ull << (4 + draw(state, 14)));
}

static void draw_trigger(uint64_t *state, const struct soak_wishes *wishes, struct scenario *s)
{
	struct soak_trigger *t = &s->trigger;
	uint32_t nr = s->job.nr_ranks;

	t->fault = wishes->fault == SOAK_DRAWN
			   ? (draw(state, 3) ? SOAK_NO_FAULT : SOAK_KILL + draw(state, 2))
			   : wishes->fault;
	t->phase =
		wishes->phase == SOAK_PHASE_DRAWN ? draw(state, SOAK_PHASE_DRAWN) : wishes->phase;
	if (nr < 2)
		t->fault = SOAK_NO_FAULT;
	t->victim = draw(state, nr);
	t->other = (t->victim + 1 + draw(state, nr > 1 ? nr - 1 : 1)) % nr;
	t->both_ways = draw(state, 2);
	t->round = draw(state, 1 + s->rounds / 2);
	t->after = draw(state, 3) == 0;
	t->delay_ns = draw_delay(state);
	if (t->phase == SOAK_ANY_TIME)
		t->delay_ns = random_next(state) % (1ull << (10 + draw(state, 12)));
	if (t->fault != SOAK_NO_FAULT && t->phase != SOAK_ANY_TIME) { /* that half has to come */
		s->release_in = s->release_in == 1 ? 2 : s->release_in;
		s->job.config.capacity = 0;
	}
	if (t->fault != SOAK_NO_FAULT && s->job.config.wait_ms > LONG_WAIT_MS)
		s->job.config.wait_ms = LONG_WAIT_MS; /* silence is borne as long */
	if (t->fault == SOAK_CUT) {
		/* Ranks of one node have no link between them. */
		if (s->fleet.ranks_per_node >= nr)
			s->fleet.ranks_per_node = 1;
		while (t->other / s->fleet.ranks_per_node == t->victim / s->fleet.ranks_per_node)
			t->other = (t->other + 1) % nr;
		/* A network that reports deaths is not asked for heartbeats, and a black hole is no
		 * death: without heartbeats only a write that is not acknowledged tells. */
		s->fleet.engine.heartbeat_ms = s->fleet.engine.timeout_ms / 4;
		s->fleet.network.retry_ns = draw(state, 2) ? 0 : 30 * MS;
	}
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void draw_manner(uint64_t *state, struct scenario *s)
{
	static const int waits_ms[] = {0, 1, 5, 20000, 20000, 20000, 20000};

	s->flow_seed = random_next(state);
	s->release_in = draw(state, 2) ? 0 : 1 + draw(state, 4);
	s->pause_in = draw(state, 3) ? 1 + draw(state, 8) : 0;
	s->half_ns = 1 + draw(state, 2000);
	s->pause_ns = 1ull << draw(state, 18);
	s->rows_apart = draw(state, 2) * 32;
	s->wide_ids = draw(state, 2);
	s->in_place = draw(state, 3) == 0;
	s->check_twice = true;
	s->job.config.wait_ms = waits_ms[draw(state, 7)];
	s->rounds = 4 + draw(state, 24);
	s->job.config.nr_chunks = 2 + draw(state, 7);
	s->job.config.chunk_bytes = 64u << draw(state, 8);
	s->job.place_in = draw(state, 2) ? 0 : 1 + draw(state, 4);
}

/* A shape of a model: the network is fair, and what is measured is how far it scales. */
static void fix_shape(const struct soak_wishes *wishes, struct scenario *s)
{
	struct tern_moe_config *c = &s->job.config;
	uint64_t seed = s->job.seed;

	job_init(&s->job);
	s->job.seed = seed;
	s->job.nr_ranks = wishes->nr_ranks ? wishes->nr_ranks : 8;
	s->job.nr_tokens = c->max_tokens = wishes->nr_tokens;
	c->hidden = wishes->hidden;
	c->nr_experts = wishes->nr_experts;
	c->topk = wishes->topk;
	c->dispatch_dtype = wishes->dtype ? wishes->dtype : TERN_BF16;
	c->scale = c->dispatch_dtype == TERN_FP8_E4M3 ? TERN_SCALE_FP32 : TERN_SCALE_NONE;
	c->wait_ms = 20000;
	sim_settings_init(&s->fleet.network);
	s->fleet.network.message_bytes = 1024;
	tern_engine_config_init(&s->fleet.engine);
	s->fleet.engine.nr_operations = 64;
	s->fleet.engine.depth = 4096;
	s->fleet.engine.wait_ms = 20000;
	s->pause_in = s->release_in = s->rows_apart = 0;
	s->in_place = c->dispatch_dtype == c->combine_dtype;
	s->check_twice = false;
	s->rounds = 1;
}

static void heed_wishes(uint64_t *state, const struct soak_wishes *wishes, struct scenario *s)
{
	if (wishes->hidden)
		fix_shape(wishes, s);
	if (wishes->nr_ranks && s->job.nr_ranks != wishes->nr_ranks) {
		s->job.nr_ranks = wishes->nr_ranks;
		while (s->job.nr_ranks % s->job.config.replica_ranks)
			s->job.config.replica_ranks--;
	}
	if (wishes->mode)
		s->job.config.mode = wishes->mode;
	if (s->job.config.mode == TERN_LOW_LATENCY)
		s->job.config.capacity = 0;
	if (wishes->rounds)
		s->rounds = wishes->rounds;
	s->fleet.ranks_per_node = draw(state, 2) ? 1 : 1 + draw(state, 4);
	if (wishes->ranks_per_node || wishes->hidden)
		s->fleet.ranks_per_node = wishes->ranks_per_node ? wishes->ranks_per_node : 1;
}

static void make_wrong(struct scenario *s)
{
	if (s->wrong == SOAK_STALE_RANK || s->wrong == SOAK_LIAR)
		s->job.place_in = 1;
	if (s->wrong != SOAK_LYING_NETWORK)
		return;
	s->fleet.network.ordered = s->fleet.network.lies = true;
	s->fleet.network.write_bytes = 64;
	s->fleet.network.reorder_ns = 50000;
	s->fleet.engine.nr_nics = 1;
}

int scenario_open(
	struct scenario *s, uint64_t seed, const struct soak_wishes *wishes, struct reason *why)
{
	struct draw_limits limits = {.nr_ranks = wishes->most_ranks ? wishes->most_ranks : 8,
		.hidden = 272,
		.nr_experts = 33,
		.nr_tokens = 16};
	uint64_t state = hash2(seed, 0x736f616b);

	memset(s, 0, sizeof(*s));
	s->seed = seed;
	if (wishes->fault != SOAK_NO_FAULT && wishes->fault != SOAK_DRAWN)
		limits = (struct draw_limits){
			.nr_ranks = limits.nr_ranks, .hidden = 48, .nr_experts = 8, .nr_tokens = 3};
	draw_job(&state, &limits, &s->job);
	draw_network(&state, &s->fleet.network);
	draw_engine(&state, &s->fleet.engine);
	draw_manner(&state, s);
	heed_wishes(&state, wishes, s);
	if (wishes->fault != SOAK_NO_FAULT && wishes->fault != SOAK_DRAWN && s->job.nr_ranks == 1) {
		s->job.nr_ranks = 2;
		s->fleet.ranks_per_node = 1;
	}
	draw_trigger(&state, wishes, s);
	s->wrong = wishes->wrong;
	make_wrong(s);
	s->fleet.seed = random_next(&state);
	s->fleet.nr_ranks = s->job.nr_ranks;
	s->fleet.wait_ms = 5000;
	s->fleet.limit_ns = 120000 * MS;
	return job_open(&s->job, why);
}

void scenario_close(struct scenario *s)
{
	job_close(&s->job);
}

/* ---- in words -------------------------------------------------------------------------------- */

static int describe_fault(const struct scenario *s, char *text, size_t bytes)
{
	const struct soak_trigger *t = &s->trigger;
	const char *when = t->phase == SOAK_ANY_TIME ? "at some time" : t->after ? "after" : "in";

	if (t->fault == SOAK_KILL)
		return snprintf(text, bytes, "; rank %u dies %s %s of round %llu, %llu ns later",
			t->victim, when, soak_phase_names[t->phase], (unsigned long long)t->round,
			(unsigned long long)t->delay_ns);
	if (t->fault == SOAK_CUT)
		return snprintf(text, bytes,
			"; link from %u to %u is cut%s %s %s of round %llu, %llu ns later",
			t->victim, t->other, t->both_ways ? " both ways" : "", when,
			soak_phase_names[t->phase], (unsigned long long)t->round,
			(unsigned long long)t->delay_ns);
	return 0;
}

void scenario_describe(const struct scenario *s, char *text, size_t bytes)
{
	const struct tern_moe_config *c = &s->job.config;
	const struct sim_settings *n = &s->fleet.network;
	const struct tern_engine_config *e = &s->fleet.engine;
	size_t at = (size_t)snprintf(text, bytes,
		"%u ranks, %u a node, replicas %u, %s, %s, reduce %s, hidden %u, experts %u + %u "
		"that move in %u, topk %u, tokens %u "
		"of %u, dtypes %s %s %s, "
		"slots %u, alignment %u, capacity %llu, wait_ms %d, %u rounds;\n"
		"  network%s%s%s%s, writes of %llu, reorder %llu ns, again %u and %u per mille, "
		"depth %u;\n"
		"  engine: ring %u, depth %u and %u, %u NICs, timeout %d ms",
		s->job.nr_ranks, s->fleet.ranks_per_node, c->replica_ranks, mode_name(c->mode),
		layout_name(c->layout), reduce_name(c->reduce), c->hidden, c->nr_experts,
		s->job.nr_redundant, s->job.place_in, c->topk, s->job.nr_tokens, c->max_tokens,
		dtype_name(c->x_dtype), dtype_name(c->dispatch_dtype), dtype_name(c->combine_dtype),
		c->nr_slots, c->alignment, (unsigned long long)c->capacity, c->wait_ms, s->rounds,
		n->ordered ? " ordered" : "", n->fence ? " with fences" : "",
		n->target_polls ? " that targets poll" : "",
		n->sees_death ? " that sees deaths" : "", (unsigned long long)n->write_bytes,
		(unsigned long long)n->reorder_ns, n->again_first, n->again_per_mille, n->depth,
		e->ring_entries, e->depth, e->peer_depth, e->nr_nics, e->timeout_ms);

	if (at < bytes)
		describe_fault(s, text + at, bytes - at);
}
