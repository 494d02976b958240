/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of exchanges on GPUs that no correct caller makes: each argument made wrong, each half in
 * each state of a slot, another device current. Each is refused with its cause, and rounds before
 * and behind them are verified as ever. Ranks are threads. What kernels find out, ids and
 * capacities, is in test_device. Skipped where there is no GPU. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "tests/device/devices.h"

#define NR_RANKS 2
#define TOKENS 4

static const struct bench_device_ops *ops;
static int nr_devices;
static uint64_t host[64] __attribute__((aligned(64)));

enum state {
	IDLE,
	DISPATCHED,
	RECEIVED,
	COMBINED
};

struct calls {
	struct rank *rank;
	struct device_rounds rounds;
	enum state state;
	/* As a correct caller has them: */
	struct tern_dispatch dispatch;
	struct tern_received received;
	struct tern_combine combine;
	struct results {
		void *out;
		size_t stride;
	} results;
};

/* ---- one argument made wrong ----------------------------------------------------------------- */

enum how {
	SET,
	ADD,
	HOST /* to the host's memory */
};

struct spoil {
	const char *name; /* NULL: the end of a list */
	size_t at, bytes; /* in the struct */
	enum how how;
	uint64_t value;
	const char *text;
};
#define FIELD(type, name) offsetof(struct type, name), sizeof(((struct type *)0)->name)

static const struct spoil of_dispatch[] = {
	{"no size", FIELD(tern_dispatch, size), SET, 0, "tern_dispatch.size is 0"},
	{"slot", FIELD(tern_dispatch, slot), SET, 1, "slot is 1 of 1"},
	{"one token more", FIELD(tern_dispatch, nr_tokens), SET, TOKENS + 1, "5 tokens"},
	{"all tokens", FIELD(tern_dispatch, nr_tokens), SET, UINT32_MAX, "4294967295 tokens"},
	{"no x", FIELD(tern_dispatch, x), SET, 0, "x is NULL"},
	{"x not aligned", FIELD(tern_dispatch, x), ADD, 8, "x at"},
	{"x on the host", FIELD(tern_dispatch, x), HOST, 0, "x: "},
	{"stride not aligned", FIELD(tern_dispatch, x_stride), SET, 1000, "x at"},
	{"short stride", FIELD(tern_dispatch, x_stride), SET, 16, "x has a stride of 16"},
	{"no ids", FIELD(tern_dispatch, topk_ids), SET, 0, "topk_ids is NULL"},
	{"ids not aligned", FIELD(tern_dispatch, topk_ids), ADD, 2, "topk_ids at"},
	{"ids on the host", FIELD(tern_dispatch, topk_ids), HOST, 0, "topk_ids: "},
	{"31 bits", FIELD(tern_dispatch, topk_ids_bits), SET, 31, "topk_ids_bits is 31"},
	{"weights not aligned", FIELD(tern_dispatch, topk_weights), ADD, 2, "topk_weights at"},
	{"weights on the host", FIELD(tern_dispatch, topk_weights), HOST, 0, "topk_weights: "},
	{NULL, 0, 0, SET, 0, NULL}};

static const struct spoil of_scales[] = {
	{"no scales", FIELD(tern_dispatch, scales), SET, 0, "scales is NULL"},
	{"scales not aligned", FIELD(tern_dispatch, scales), ADD, 2, "scales at"},
	{"scales on the host", FIELD(tern_dispatch, scales), HOST, 0, "scales: "},
	{"short stride of scales", FIELD(tern_dispatch, scales_stride), SET, 4,
		"scales has a stride of 4"},
	{NULL, 0, 0, SET, 0, NULL}};

static const struct spoil of_no_scales[] = {
	{"scales of rows that have none", FIELD(tern_dispatch, scales), HOST, 0, "x is not FP8"},
	{NULL, 0, 0, SET, 0, NULL}};

static const struct spoil of_received[] = {
	{"no size of received", FIELD(tern_received, size), SET, 0, "tern_received.size is 0"},
	{NULL, 0, 0, SET, 0, NULL}};

static const struct spoil of_library_rows[] = {
	{"into_x in high throughput", FIELD(tern_received, into_x), HOST, 0, "into_x is given"},
	{NULL, 0, 0, SET, 0, NULL}};

static const struct spoil of_own_rows[] = {
	{"into_x not aligned", FIELD(tern_received, into_x), ADD, 8, "into_x is not aligned"},
	{"into_x on the host", FIELD(tern_received, into_x), HOST, 0, "into_x: "},
	{NULL, 0, 0, SET, 0, NULL}};

static const struct spoil of_own_scales[] = {
	{"no into_scales", FIELD(tern_received, into_scales), SET, 0, "into_scales is NULL"},
	{"into_scales not aligned", FIELD(tern_received, into_scales), ADD, 2, "into_scales at"},
	{"into_scales on the host", FIELD(tern_received, into_scales), HOST, 0, "into_scales: "},
	{NULL, 0, 0, SET, 0, NULL}};

static const struct spoil of_combine[] = {
	{"no size of combine", FIELD(tern_combine, size), SET, 0, "tern_combine.size is 0"},
	{"slot of combine", FIELD(tern_combine, slot), SET, UINT32_MAX, "slot is 4294967295 of 1"},
	{"y not aligned", FIELD(tern_combine, y), ADD, 4, "y at"},
	{"y on the host", FIELD(tern_combine, y), HOST, 0, "y: "},
	{"y's stride not aligned", FIELD(tern_combine, y_stride), SET, 1000, "y at"},
	{"y's stride short", FIELD(tern_combine, y_stride), SET, 16, "y at"},
	{NULL, 0, 0, SET, 0, NULL}};

static const struct spoil of_results[] = {
	{"no out", FIELD(results, out), SET, 0, "out is NULL for 4 tokens"},
	{"out not aligned", FIELD(results, out), ADD, 8, "out at"},
	{"out on the host", FIELD(results, out), HOST, 0, "out: "},
	{"out's stride not aligned", FIELD(results, stride), SET, 1000, "out at"},
	{"out's stride short", FIELD(results, stride), SET, 16, "out at"},
	{NULL, 0, 0, SET, 0, NULL}};

static void make_wrong(void *args, const struct spoil *spoil)
{
	uint64_t value = 0;

	memcpy(&value, (char *)args + spoil->at, spoil->bytes);
	value = spoil->how == SET   ? spoil->value
		: spoil->how == ADD ? value + spoil->value
				    : (uintptr_t)host;
	memcpy((char *)args + spoil->at, &value, spoil->bytes);
}

/* ---- what is expected ------------------------------------------------------------------------ */

/* In the state that the call is for, the cause; in others that state may be complained of first. */
static void refused(struct calls *c, enum state wanted, int rc, const char *call, const char *name,
	const char *text)
{
	bool right = c->state == wanted;

	if (!(rc == TERN_ERR_INVALID || (rc == TERN_ERR_STATE && !right)))
		rank_fails(c->rank, "%s, %s, in state %d: got %d (%s)", call, name, (int)c->state,
			rc, rc ? tern_last_error() : "taken");
	else if (right && !strstr(tern_last_error(), text))
		rank_fails(c->rank, "%s, %s: \"%s\" does not say \"%s\"", call, name,
			tern_last_error(), text);
}

static void wrong_dispatches(struct calls *c, const struct spoil *spoil)
{
	tern_moe *moe = c->rounds.moe;

	for (; spoil->name; spoil++) {
		struct tern_dispatch args = c->dispatch;
		struct tern_received received = c->received;

		make_wrong(&args, spoil);
		refused(c, IDLE, tern_dispatch(moe, &args, &received), "tern_dispatch", spoil->name,
			spoil->text);
		refused(c, IDLE, tern_dispatch_send(moe, &args), "tern_dispatch_send", spoil->name,
			spoil->text);
	}
}

static void wrong_received(struct calls *c, const struct spoil *spoil)
{
	tern_moe *moe = c->rounds.moe;

	for (; spoil->name; spoil++) {
		struct tern_received received = c->received;

		make_wrong(&received, spoil);
		refused(c, IDLE, tern_dispatch(moe, &c->dispatch, &received), "tern_dispatch",
			spoil->name, spoil->text);
		refused(c, DISPATCHED, tern_dispatch_recv(moe, 0, &received), "tern_dispatch_recv",
			spoil->name, spoil->text);
	}
}

static void wrong_combines(struct calls *c)
{
	tern_moe *moe = c->rounds.moe;

	for (const struct spoil *spoil = of_combine; spoil->name; spoil++) {
		struct tern_combine args = c->combine;

		make_wrong(&args, spoil);
		refused(c, RECEIVED, tern_combine(moe, &args, c->results.out, 0), "tern_combine",
			spoil->name, spoil->text);
		refused(c, RECEIVED, tern_combine_send(moe, &args), "tern_combine_send",
			spoil->name, spoil->text);
	}
	for (const struct spoil *spoil = of_results; spoil->name; spoil++) {
		struct results results = c->results;

		make_wrong(&results, spoil);
		refused(c, RECEIVED, tern_combine(moe, &c->combine, results.out, results.stride),
			"tern_combine", spoil->name, spoil->text);
		refused(c, COMBINED, tern_combine_recv(moe, 0, results.out, results.stride),
			"tern_combine_recv", spoil->name, spoil->text);
	}
}

static void nothing_given(struct calls *c)
{
	struct tern_received received = c->received;
	tern_moe *moe = c->rounds.moe;

	refused(c, IDLE, tern_dispatch(moe, NULL, &received), "tern_dispatch", "no args",
		"tern_dispatch is NULL");
	refused(c, IDLE, tern_dispatch(moe, &c->dispatch, NULL), "tern_dispatch", "no received",
		"received is NULL");
	refused(c, IDLE, tern_dispatch_send(moe, NULL), "tern_dispatch_send", "no args",
		"tern_dispatch is NULL");
	refused(c, DISPATCHED, tern_dispatch_recv(moe, 0, NULL), "tern_dispatch_recv",
		"no received", "received is NULL");
	refused(c, DISPATCHED, tern_dispatch_recv(moe, 1, &received), "tern_dispatch_recv", "slot",
		"slot is 1 of 1");
	refused(c, RECEIVED, tern_combine(moe, NULL, c->results.out, 0), "tern_combine", "no args",
		"tern_combine is NULL");
	refused(c, RECEIVED, tern_combine_send(moe, NULL), "tern_combine_send", "no args",
		"tern_combine is NULL");
	refused(c, COMBINED, tern_combine_recv(moe, 1, c->results.out, 0), "tern_combine_recv",
		"slot", "slot is 1 of 1");
	refused(c, RECEIVED, tern_release(moe, 1), "tern_release", "slot", "slot is 1 of 1");
}

/* There is none, whatever its number; one is made of received rows alone. */
static void no_plans(struct calls *c)
{
	struct tern_dispatch args = c->dispatch;
	tern_moe *moe = c->rounds.moe;
	uint64_t plan = 0;

	args.plan = UINT64_MAX;
	if (tern_dispatch_send(moe, &args) != TERN_ERR_STATE ||
		tern_plan_destroy(moe, UINT64_MAX) != TERN_ERR_STATE ||
		tern_plan_create(moe, 0, NULL) != TERN_ERR_INVALID ||
		(c->state != RECEIVED && tern_plan_create(moe, 0, &plan) != TERN_ERR_STATE) || plan)
		rank_fails(c->rank, "a plan that is none: %s", tern_last_error());
}

/* x and into_x may touch, and may not overlap: in one kernel what is read and what is written has
 * no order. */
static void overlapping(struct calls *c)
{
	struct tern_received received = c->received;
	struct tern_dispatch args = c->dispatch;
	tern_moe *moe = c->rounds.moe;

	if (!received.into_x)
		return;
	received.into_x = (uint8_t *)c->dispatch.x + (TOKENS - 1) * job_x_bytes(c->rounds.job);
	refused(c, IDLE, tern_dispatch(moe, &args, &received), "tern_dispatch",
		"into_x in the last row of x", "overlaps into_x");
	args.x = (uint8_t *)c->received.into_x + 16;
	refused(c, IDLE, tern_dispatch(moe, &args, &c->received), "tern_dispatch", "x in into_x",
		"overlaps into_x");
}

/* With all arguments right. */
static void wrong_states(struct calls *c)
{
	struct tern_received received = c->received;
	tern_moe *moe = c->rounds.moe;
	int rc[7] = {-1, -1, -1, -1, -1, -1, -1};

	if (c->state != IDLE) {
		rc[0] = tern_dispatch(moe, &c->dispatch, &received);
		rc[1] = tern_dispatch_send(moe, &c->dispatch);
	}
	if (c->state != DISPATCHED)
		rc[2] = tern_dispatch_recv(moe, 0, &received);
	if (c->state != RECEIVED) {
		rc[3] = tern_combine(moe, &c->combine, c->results.out, 0);
		rc[4] = tern_combine_send(moe, &c->combine);
		rc[5] = tern_release(moe, 0);
	}
	if (c->state != COMBINED)
		rc[6] = tern_combine_recv(moe, 0, c->results.out, 0);
	for (int i = 0; i < 7; i++)
		if (rc[i] != -1 && rc[i] != TERN_ERR_STATE)
			rank_fails(c->rank, "call %d in state %d: got %d (%s)", i, (int)c->state,
				rc[i], tern_last_error());
}

/* As they would be right on the device of the exchange. */
static void another_device(struct calls *c)
{
	static const char text[] = "the exchange was made on device";
	struct tern_received received = c->received;
	tern_moe *moe = c->rounds.moe;

	if (nr_devices < 2)
		return;
	device_choose(ops, (uint32_t)c->rank->rank + 1);
	refused(c, IDLE, tern_dispatch(moe, &c->dispatch, &received), "tern_dispatch",
		"another device", text);
	refused(c, IDLE, tern_dispatch_send(moe, &c->dispatch), "tern_dispatch_send",
		"another device", text);
	refused(c, DISPATCHED, tern_dispatch_recv(moe, 0, &received), "tern_dispatch_recv",
		"another device", text);
	refused(c, RECEIVED, tern_combine(moe, &c->combine, c->results.out, 0), "tern_combine",
		"another device", text);
	refused(c, RECEIVED, tern_combine_send(moe, &c->combine), "tern_combine_send",
		"another device", text);
	refused(c, RECEIVED, tern_release(moe, 0), "tern_release", "another device", text);
	refused(c, COMBINED, tern_combine_recv(moe, 0, c->results.out, 0), "tern_combine_recv",
		"another device", text);
	device_choose(ops, (uint32_t)c->rank->rank);
}

/* In any state. */
static void settings_and_questions(struct calls *c)
{
	struct tern_wait_report report = {.size = 1};
	struct tern_memory memory = {.size = sizeof(memory) + 1};
	struct tern_stats stats = {.size = 0};
	const uint32_t *word = (const uint32_t *)c->rounds.lanes[0].nr_tokens;
	tern_moe *moe = c->rounds.moe;
	enum state here = c->state;

	if (tern_moe_place(moe, 1, NULL, 0) != TERN_ERR_STATE ||
		!strstr(tern_last_error(), "made without placement.logical"))
		rank_fails(c->rank, "tern_moe_place: %s", tern_last_error());
	refused(c, here, tern_moe_set_stream(moe, 1, NULL), "tern_moe_set_stream", "slot",
		"slot is 1");
	refused(c, here, tern_moe_set_stream(NULL, 0, NULL), "tern_moe_set_stream", "no moe",
		"moe is NULL");
	refused(c, here, tern_moe_set_nr_tokens_at(moe, 1, word), "tern_moe_set_nr_tokens_at",
		"slot", "slot is 1");
	refused(c, here, tern_moe_set_nr_tokens_at(moe, 0, (const uint32_t *)host),
		"tern_moe_set_nr_tokens_at", "the host's", "memory of the host");
	refused(c, here, tern_moe_set_nr_tokens_at(moe, 0, (const uint32_t *)((uintptr_t)word + 2)),
		"tern_moe_set_nr_tokens_at", "not aligned", "aligned to 4");
	refused(c, here, tern_moe_set_nr_tokens_at(NULL, 0, word), "tern_moe_set_nr_tokens_at",
		"no moe", "moe is NULL");
	refused(c, here, tern_moe_set_sms(NULL, 4), "tern_moe_set_sms", "no moe", "moe is NULL");
	refused(c, here, tern_moe_set_wait(moe, 0), "tern_moe_set_wait", "0", "wait_ms is 0");
	refused(c, here, tern_moe_set_wait(moe, -1), "tern_moe_set_wait", "-1",
		"wait_ms is negative");
	refused(c, here, tern_moe_status(NULL), "tern_moe_status", "no moe", "moe is NULL");
	refused(c, here, tern_moe_wait_report(moe, &report), "tern_moe_wait_report", "size",
		"size is 1");
	refused(c, here, tern_moe_wait_report(moe, NULL), "tern_moe_wait_report", "no report",
		"report is NULL");
	refused(c, here, tern_moe_memory(moe, &memory), "tern_moe_memory", "size",
		"which no version");
	refused(c, here, tern_moe_stats(moe, &stats), "tern_moe_stats", "size", "size is 0");
	refused(c, here, tern_moe_stats(moe, NULL), "tern_moe_stats", "no stats", "stats is NULL");
	refused(c, here, tern_moe_stats_reset(NULL), "tern_moe_stats_reset", "no moe",
		"moe is NULL");
	refused(c, here, tern_moe_expert_load(moe, &(uint64_t){0}, 7), "tern_moe_expert_load",
		"7 of 8", "nr is 7 for 8");
	refused(c, here, tern_moe_expert_load(moe, NULL, 8), "tern_moe_expert_load", "no counts",
		"counts is NULL");
	refused(c, here, tern_moe_local_expert(moe, 4), "tern_moe_local_expert", "4 of 4",
		"local expert 4");
	if (tern_moe_status(moe))
		rank_fails(
			c->rank, "nothing has happened, and the status is %s", tern_last_error());
}

/* Nothing that was refused is counted, when the kernels of what was not have ended. */
static void all_wrong(struct calls *c, enum state state)
{
	const struct tern_moe_config *config = &c->rounds.job->config;
	bool scaled = config->x_dtype == TERN_FP8_E4M3, low = config->mode == TERN_LOW_LATENCY;
	struct tern_stats before = {.size = sizeof(before)}, after = {.size = sizeof(after)};
	int rc = ops->stream_wait(c->rounds.lanes[0].stream) ||
		 tern_moe_stats(c->rounds.moe, &before);

	c->state = state;
	nothing_given(c);
	no_plans(c);
	wrong_dispatches(c, of_dispatch);
	wrong_dispatches(c, scaled ? of_scales : of_no_scales);
	wrong_received(c, of_received);
	wrong_received(c, low ? of_own_rows : of_library_rows);
	if (low && scaled)
		wrong_received(c, of_own_scales);
	wrong_combines(c);
	overlapping(c);
	wrong_states(c);
	another_device(c);
	settings_and_questions(c);
	rc = rc || ops->stream_wait(c->rounds.lanes[0].stream) ||
	     tern_moe_stats(c->rounds.moe, &after);
	if (rc || memcmp(&before, &after, sizeof(before)))
		rank_fails(c->rank, "refused calls were counted, or not refused: %s",
			tern_last_error());
}

/* ---- the rounds between them ----------------------------------------------------------------- */

static void fill_calls(struct calls *c)
{
	const struct tern_moe_config *config = &c->rounds.job->config;
	struct device_lane *lane = &c->rounds.lanes[0];
	bool scaled = config->x_dtype == TERN_FP8_E4M3, low = config->mode == TERN_LOW_LATENCY;

	c->dispatch = (struct tern_dispatch){.size = sizeof(c->dispatch),
		.nr_tokens = TOKENS,
		.x = lane->x,
		.scales = scaled ? lane->scales : NULL,
		.topk_ids = lane->ids,
		.topk_weights = (const float *)lane->weights};
	c->received = (struct tern_received){.size = sizeof(c->received),
		.into_x = low ? lane->into_x : NULL,
		.into_scales = low && scaled ? lane->into_scales : NULL};
	c->combine = (struct tern_combine){.size = sizeof(c->combine), .y = lane->y};
	c->results = (struct results){lane->out, 0};
}

/* A round in its four halves, of tokens without an expert. */
static int put_half(struct calls *c, enum state from)
{
	struct tern_received received = c->received;
	tern_moe *moe = c->rounds.moe;

	switch (from) {
	case IDLE:
		return tern_dispatch_send(moe, &c->dispatch);
	case DISPATCHED:
		return tern_dispatch_recv(moe, 0, &received);
	case RECEIVED:
		return tern_combine_send(moe, &c->combine);
	case COMBINED:
		return tern_combine_recv(moe, 0, c->results.out, 0);
	}
	return -1;
}

static int open_calls(struct calls *c, struct rank *rank)
{
	int rc = device_choose(ops, (uint32_t)rank->rank);

	memset(c, 0, sizeof(*c));
	c->rank = rank;
	rc = rc ? rc : device_rounds_open(&c->rounds, rank->group, rank->ctx, ops);
	if (rc)
		return rank_fails(rank, "open: %s", tern_last_error());
	fill_calls(c);
	return 0;
}

static void wrong_calls(struct rank *rank)
{
	struct calls c;
	int rc = open_calls(&c, rank);

	for (uint64_t round = 0; round < 4 && !rc; round++) {
		all_wrong(&c, IDLE);
		rc = device_rounds_step(&c.rounds, 0, round);
		if (!rc)
			all_wrong(&c, RECEIVED);
		for (uint32_t step = 1; step < DEVICE_ROUNDS_STEPS && !rc; step++)
			rc = device_rounds_step(&c.rounds, step, round);
	}
	rc = rc ? rc
		: ops->fill(c.rounds.lanes[0].ids, 0xff, TOKENS * 2 * sizeof(int32_t),
			  c.rounds.lanes[0].stream);
	for (enum state state = IDLE; state <= COMBINED && !rc; state++) {
		all_wrong(&c, state);
		rc = put_half(&c, state);
	}
	rc = rc ? rc : device_rounds_verify(&c.rounds, 4);
	if (rc || c.rounds.difference.nr)
		rank_fails(rank, "%s %s", rc ? tern_last_error() : "", c.rounds.difference.first);
	devices_close(rank, &c.rounds);
}

/* Unusual, and right: more tokens on the device than the call has room for, which are cut off, and
 * few or many SMs. */
static void odd_settings(struct rank *rank)
{
	static const uint32_t sms[] = {1, 0, UINT32_MAX};
	struct calls c;
	int rc = open_calls(&c, rank);

	for (uint64_t i = 0; i < 3 && !rc; i++) {
		uint32_t *word = (uint32_t *)c.rounds.lanes[0].into_scales; /* not one that rounds
									       use: rows have no
									       scales */

		rc = ops->fill(word, 0xff, sizeof(*word), c.rounds.lanes[0].stream);
		rc = rc ? rc : tern_moe_set_nr_tokens_at(c.rounds.moe, 0, word);
		rc = rc ? rc : tern_moe_set_sms(c.rounds.moe, sms[i]);
		rc = rc ? rc : device_rounds_verify(&c.rounds, i);
	}
	if (rc || c.rounds.difference.nr)
		rank_fails(rank, "%s %s", rc ? tern_last_error() : "", c.rounds.difference.first);
	devices_close(rank, &c.rounds);
}

/* Settings that are refused for devices alone, by all ranks; then one that is not. */
static void wrong_exchanges(struct rank *rank)
{
	static const struct {
		const char *text;
		struct spoil spoil;
		enum tern_mode mode;
		int rc;
	} cases[] = {{"wait_ms is 0", {"wait 0", FIELD(tern_moe_config, wait_ms), SET, 0, NULL},
			     TERN_LOW_LATENCY, TERN_ERR_INVALID},
		{"threads are for exchanges on CPUs",
			{"threads", FIELD(tern_moe_config, nr_threads), SET, 2, NULL},
			TERN_LOW_LATENCY, TERN_ERR_INVALID},
		{"device", {"device 2", FIELD(tern_moe_config, device), SET, 2, NULL},
			TERN_LOW_LATENCY, TERN_ERR_INVALID},
		{"capacity is 9223372036854775808",
			{"2^63 rows", FIELD(tern_moe_config, capacity), SET, 1ull << 63, NULL},
			TERN_HIGH_THROUGHPUT, TERN_ERR_INVALID},
		{"payload_bytes is 67108880",
			{"long rows", FIELD(tern_moe_config, payload_bytes), SET, 67108880, NULL},
			TERN_LOW_LATENCY, TERN_ERR_INVALID},
		{"caller_output",
			{"caller's output", FIELD(tern_moe_config, caller_output), SET, 1, NULL},
			TERN_HIGH_THROUGHPUT, TERN_ERR_INVALID},
		{"kernels choose them in turn",
			{"least loaded", FIELD(tern_moe_config, replicas), SET,
				TERN_REPLICAS_LEAST_LOADED, NULL},
			TERN_LOW_LATENCY, TERN_ERR_UNSUPPORTED},
		{"65537 tokens",
			{"many tokens", FIELD(tern_moe_config, max_tokens), SET, 65537, NULL},
			TERN_LOW_LATENCY, TERN_ERR_UNSUPPORTED},
		{"60000 physical experts",
			{"many experts", FIELD(tern_moe_config, nr_experts), SET, 60000, NULL},
			TERN_HIGH_THROUGHPUT, TERN_ERR_UNSUPPORTED},
		{NULL, {"none", FIELD(tern_moe_config, reduce), SET, TERN_REDUCE_HOME, NULL},
			TERN_HIGH_THROUGHPUT, 0}};
	const struct job *job = rank->ctx;

	device_choose(ops, (uint32_t)rank->rank);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct tern_moe_config config = job->config;
		tern_moe *moe = NULL;
		int rc;

		config.mode = cases[i].mode;
		make_wrong(&config, &cases[i].spoil);
		rc = tern_moe_create(rank->group, &config, &moe);
		if (rc != cases[i].rc || !moe != !!rc ||
			(rc && !strstr(tern_last_error(), cases[i].text)))
			rank_fails(rank, "%s: got %d (%s)", cases[i].spoil.name, rc,
				tern_last_error());
		tern_moe_destroy(moe);
	}
}

static void make_job(struct job *job, enum tern_mode mode, bool scaled)
{
	job_init(job);
	job->nr_ranks = NR_RANKS;
	job->nr_tokens = TOKENS;
	job->config.mode = mode;
	job->config.hidden = 512;
	job->config.nr_experts = 8;
	job->config.topk = 2;
	job->config.max_tokens = TOKENS;
	job->config.device = TERN_DEVICE_CUDA;
	job->config.wait_ms = 5000;
	if (!scaled)
		return;
	job->config.x_dtype = job->config.dispatch_dtype = TERN_FP8_E4M3;
	job->config.scale = TERN_SCALE_FP32;
}

static int run(const char *name, rank_main body, enum tern_mode mode, bool scaled)
{
	const char *failure;
	struct reason why;
	struct job job;

	make_job(&job, mode, scaled);
	if (job_open(&job, &why)) {
		printf("not ok - %s: no job: %s\n", name, why.text);
		return 1;
	}
	failure = run_ranks(NR_RANKS, body, &job);
	printf("%s - %s%s%s%s\n", failure ? "not ok" : "ok",
		mode == TERN_LOW_LATENCY ? "ll_" : "ht_", name, failure ? ": " : "",
		failure ? failure : "");
	job_close(&job);
	return failure != NULL;
}

int main(void)
{
	int bad = 0;

	ops = devices_open(&nr_devices);
	if (!ops)
		return 77;
	for (enum tern_mode mode = TERN_LOW_LATENCY; mode <= TERN_HIGH_THROUGHPUT; mode++) {
		bad |= run("wrong_calls", wrong_calls, mode, false);
		bad |= run("wrong_calls_with_scales", wrong_calls, mode, true);
		bad |= run("odd_settings", odd_settings, mode, false);
	}
	return bad | run("wrong_exchanges", wrong_exchanges, TERN_HIGH_THROUGHPUT, false);
}
