/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank does: halves over all slots in an order that is the same on all ranks, with pauses of
 * its own between them. What it passes is overwritten as soon as the contract lets it; what it
 * received, before it gives it back. */
#include "soak/inputs.h"
#include "soak/soak_inside.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "testkit/random.h"
#include "exchange/state.h"

#define POISON 0xa5
#define MS 1000000ull
#define FIRST_POLL_NS 1000u
#define LONGEST_POLL_NS MS

enum next_half {
	NEXT_DISPATCH_SEND,
	NEXT_DISPATCH_RECV,
	NEXT_COMBINE_SEND,
	NEXT_COMBINE_RECV
};

struct seat { /* of a slot */
	enum next_half next;
	bool released;
	uint64_t number; /* of its round */
	struct tern_received received;
};

struct rank_script {
	struct show *show;
	const struct scenario *scenario;
	const struct job *job;
	struct fate *fate;
	uint32_t rank;
	tern_group *group;
	tern_moe *moe;
	struct seat seats[16];
	uint32_t version;   /* of the placement */
	uint64_t flow, own; /* states: the same on all ranks, and this one's */
	uint64_t started;
	uint64_t began_ns; /* the call under way */
	void *out;
	size_t out_stride;
};

/* ---- what goes wrong ------------------------------------------------------------------------- */

static int broken(struct rank_script *r, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
static int broken(struct rank_script *r, const char *format, ...)
{
	va_list args;

	if (*r->fate->wrong || fleet_is_buried(r->show->fleet, r->rank))
		return -1;
	va_start(args, format);
	vsnprintf(r->fate->wrong, sizeof(r->fate->wrong), format, args);
	va_end(args);
	return -1;
}

static int ended_by(struct rank_script *r, int rc, const char *call)
{
	if (r->fate->rc || fleet_is_buried(r->show->fleet, r->rank))
		return -1;
	r->fate->rc = rc;
	r->fate->call = call;
	r->fate->at_ns = fleet_now(r->show->fleet);
	snprintf(r->fate->text, sizeof(r->fate->text), "%s", tern_last_error());
	return -1;
}

static void *need(struct rank_script *r, size_t bytes)
{
	void *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);

	if (!memory)
		broken(r, "no memory for %zu bytes", bytes);
	return memory;
}

/* ---- calls: bounded, repeated after a time-out, or the end ----------------------------------- */

static void call_begins(struct rank_script *r, const char *call)
{
	fleet_does(r->show->fleet, r->rank, call);
	r->began_ns = fleet_now(r->show->fleet);
}

/* A call waits at most four times in the exchange, and once for room in the engine's ring. */
static void check_bound(struct rank_script *r, const char *call)
{
	uint64_t took = fleet_now(r->show->fleet) - r->began_ns;
	uint64_t most = (4 * (uint64_t)r->job->config.wait_ms +
				(uint64_t)r->scenario->fleet.engine.wait_ms) *
				MS +
			MS;

	if (took > most)
		broken(r, "%s took %.3f ms of virtual time with wait_ms %d", call,
			(double)took / 1e6, r->job->config.wait_ms);
}

/* True: it timed out as short waits do, and is to be called again. */
static bool again(struct rank_script *r, const char *call, int rc, uint64_t *poll_ns)
{
	check_bound(r, call);
	r->fate->halves += rc == 0;
	if (rc != TERN_ERR_TIMEOUT || fleet_is_buried(r->show->fleet, r->rank))
		return false;
	/* Silence is no death before it has lasted as long as the longest wait: that may be over
	 * first. */
	if (r->scenario->trigger.fault == SOAK_NO_FAULT && r->job->config.wait_ms >= 1000)
		return false;
	if (!*tern_last_error())
		broken(r, "%s timed out without a cause", call);
	fleet_pause(r->show->fleet, r->rank, *poll_ns);
	*poll_ns = *poll_ns * 2 < LONGEST_POLL_NS ? *poll_ns * 2 : LONGEST_POLL_NS;
	r->began_ns = fleet_now(r->show->fleet);
	return true;
}

/* ---- the fault ------------------------------------------------------------------------------- */

static void pull(struct rank_script *r)
{
	const struct soak_trigger *t = &r->scenario->trigger;
	uint64_t at = fleet_now(r->show->fleet) + t->delay_ns;

	r->show->struck = true;
	if (t->fault == SOAK_KILL)
		fleet_kill(r->show->fleet, t->victim, at);
	else
		fleet_cut(r->show->fleet, t->victim, t->other, t->both_ways, at);
}

static void meet_fault(
	struct rank_script *r, const struct seat *seat, enum soak_phase phase, bool after)
{
	const struct soak_trigger *t = &r->scenario->trigger;

	if (t->fault != SOAK_NO_FAULT && !r->show->struck && t->phase == phase &&
		t->after == after && t->victim == r->rank && seat->number >= t->round)
		pull(r);
}

/* ---- dispatch -------------------------------------------------------------------------------- */

static int try_dispatch(struct rank_script *r, uint32_t slot, const struct inputs *in)
{
	const struct scenario *s = r->scenario;
	struct tern_dispatch args = {.size = sizeof(args),
		.slot = slot,
		.nr_tokens = in->nr_tokens,
		.x = in->x,
		.x_stride = s->rows_apart ? in->x_stride : 0,
		.scales = in->scales,
		.scales_stride = s->rows_apart && in->scales ? in->scales_stride : 0,
		.topk_ids = s->wide_ids ? (const void *)in->wide_ids : in->ids,
		.topk_ids_bits = s->wide_ids ? 64 : 0,
		.topk_weights = r->job->no_weights ? NULL : in->weights};
	uint64_t poll_ns = FIRST_POLL_NS;
	int rc;

	call_begins(r, "tern_dispatch_send");
	do
		rc = tern_dispatch_send(r->moe, &args);
	while (again(r, "tern_dispatch_send", rc, &poll_ns));
	return rc;
}

/* Over capacity: the reference says so, too, and the rank. */
static int check_capacity(struct rank_script *r, struct seat *seat, int rc)
{
	int over = oracle_over_capacity(r->show->oracle, seat->number);
	char text[64];

	snprintf(text, sizeof(text), "rank %d would receive more", over);
	if (rc != TERN_ERR_CAPACITY && over < 0)
		return rc ? ended_by(r, rc, "tern_dispatch_send") : 0;
	if (rc && rc != TERN_ERR_CAPACITY)
		return ended_by(r, rc, "tern_dispatch_send");
	if (rc != TERN_ERR_CAPACITY || !strstr(tern_last_error(), text))
		return broken(r,
			"round %llu: dispatch_send returned %d (%s), and rank %d is over its "
			"capacity",
			(unsigned long long)seat->number, rc, rc ? tern_last_error() : "", over);
	r->fate->rounds++;
	return 0;
}

static int place(struct rank_script *r, uint32_t version, uint32_t tables)
{
	uint32_t nr = job_nr_physical(r->job);
	int32_t *logical = need(r, nr * sizeof(*logical));
	int rc;

	if (!logical)
		return -1;
	job_place(r->job, tables, logical);
	rc = tern_moe_place(r->moe, version, logical, nr);
	free(logical);
	return rc ? ended_by(r, rc, "tern_moe_place") : 0;
}

/* Experts are where the round wants them; or not, and then it is said or not. */
static int move_experts(struct rank_script *r, uint64_t number)
{
	uint32_t version = job_version(r->job, number);
	bool lags = r->rank == 0 && version == 1;
	struct placed placed;
	int rc;

	if (r->version == version || (lags && r->scenario->wrong == SOAK_STALE_RANK))
		return 0;
	r->version = version;
	rc = place(r, version, version);
	if (rc || !lags || r->scenario->wrong != SOAK_LIAR)
		return rc;
	placed = r->moe->placement.placed;
	rc = place(r, version, version - 1);
	r->moe->placement.placed = placed;
	return rc;
}

static int dispatch_send(struct rank_script *r, uint32_t slot)
{
	struct seat *seat = &r->seats[slot];
	struct inputs in;
	int rc = move_experts(r, seat->number);

	if (rc)
		return rc;
	rc = inputs_make(r->scenario, r->rank, seat->number, &in)
		     ? broken(r, "no memory for what is passed")
		     : try_dispatch(r, slot, &in);

	inputs_free(&in); /* gone as soon as they may be */
	if (*r->fate->wrong)
		return -1;
	if (rc == 0)
		seat->next = NEXT_DISPATCH_RECV;
	return check_capacity(r, seat, rc);
}

static int check_received(struct rank_script *r, struct seat *seat, const char *when)
{
	struct reference *reference = oracle_round(r->show->oracle, seat->number);
	struct difference difference = {0};

	if (!reference || verify_received(reference, r->rank, &seat->received, &difference))
		return broken(r, "no memory to verify");
	return difference.nr ? broken(r, "%llu wrong %s: %s", (unsigned long long)difference.nr,
				       when, difference.first)
			     : 0;
}

static int dispatch_recv(struct rank_script *r, uint32_t slot)
{
	struct seat *seat = &r->seats[slot];
	uint64_t poll_ns = FIRST_POLL_NS;
	int rc;

	seat->received = (struct tern_received){.size = sizeof(seat->received)};
	call_begins(r, "tern_dispatch_recv");
	do
		rc = tern_dispatch_recv(r->moe, slot, &seat->received);
	while (again(r, "tern_dispatch_recv", rc, &poll_ns));
	if (rc)
		return ended_by(r, rc, "tern_dispatch_recv");
	seat->next = NEXT_COMBINE_SEND;
	if (seat->received.version != job_version(r->job, seat->number))
		return broken(r, "round %llu is of version %u of the placement",
			(unsigned long long)seat->number, seat->received.version);
	if (r->scenario->wrong == SOAK_SPOILED_ROW && seat->received.nr_rows)
		*(uint8_t *)((char *)seat->received.x +
			     seat->received.offsets[0] * job_received_bytes(r->job)) ^= 1;
	return check_received(r, seat, "after dispatch");
}

/* ---- combine --------------------------------------------------------------------------------- */

/* A peer that stores for the next round before these rows were given back is found now, or later by
 * the poison. */
static int spoil_received(struct rank_script *r, struct seat *seat)
{
	int rc = r->scenario->check_twice ? check_received(r, seat, "before they were given back")
					  : 0;

	if (!rc && seat->received.extent)
		memset(seat->received.x, POISON,
			seat->received.extent * job_received_bytes(r->job));
	return rc;
}

static int try_combine(struct rank_script *r, uint32_t slot, void *y, size_t stride)
{
	struct seat *seat = &r->seats[slot];
	struct tern_combine args = {.size = sizeof(args), .slot = slot, .y = y, .y_stride = stride};
	uint64_t poll_ns = FIRST_POLL_NS;
	int rc;

	if (fill_y(oracle_round(r->show->oracle, seat->number), r->rank, y, stride))
		return broken(r, "no memory for y");
	call_begins(r, "tern_combine_send");
	do
		rc = tern_combine_send(r->moe, &args);
	while (again(r, "tern_combine_send", rc, &poll_ns));
	return rc;
}

static int combine_send(struct rank_script *r, uint32_t slot)
{
	struct seat *seat = &r->seats[slot];
	size_t bytes = job_y_bytes(r->job), stride = bytes + r->scenario->rows_apart;
	bool in_place = r->scenario->in_place && bytes == job_received_bytes(r->job);
	void *y = in_place ? seat->received.x : need(r, seat->received.extent * stride);
	int rc = 0;

	if (in_place)
		stride = bytes;
	else
		rc = y ? spoil_received(r, seat) : -1;
	rc = rc ? rc : try_combine(r, slot, y, stride);
	if (!in_place)
		free(y);
	if (*r->fate->wrong)
		return -1;
	if (rc)
		return ended_by(r, rc, "tern_combine_send");
	seat->next = NEXT_COMBINE_RECV;
	return 0;
}

static int release(struct rank_script *r, uint32_t slot)
{
	struct seat *seat = &r->seats[slot];
	int rc = spoil_received(r, seat);

	if (rc)
		return rc;
	call_begins(r, "tern_release");
	rc = tern_release(r->moe, slot);
	r->fate->halves += rc == 0;
	if (rc)
		return ended_by(r, rc, "tern_release");
	seat->next = NEXT_DISPATCH_SEND;
	r->fate->rounds++;
	return 0;
}

static int combine_recv(struct rank_script *r, uint32_t slot)
{
	struct seat *seat = &r->seats[slot];
	struct difference difference = {0};
	struct reference *reference;
	uint64_t poll_ns = FIRST_POLL_NS;
	int rc;

	memset(r->out, POISON, r->job->config.max_tokens * r->out_stride);
	call_begins(r, "tern_combine_recv");
	do
		rc = tern_combine_recv(r->moe, slot, r->out, r->out_stride);
	while (again(r, "tern_combine_recv", rc, &poll_ns));
	if (rc)
		return ended_by(r, rc, "tern_combine_recv");
	seat->next = NEXT_DISPATCH_SEND;
	reference = oracle_round(r->show->oracle, seat->number);
	if (!reference || verify_combined(reference, r->rank, r->out, r->out_stride, &difference))
		return broken(r, "no memory to verify");
	if (difference.nr)
		return broken(r, "%llu wrong after combine: %s", (unsigned long long)difference.nr,
			difference.first);
	r->fate->rounds++;
	return 0;
}

/* ---- the flow -------------------------------------------------------------------------------- */

static bool may_start(const struct rank_script *r)
{
	return r->scenario->trigger.fault != SOAK_NO_FAULT || r->started < r->scenario->rounds;
}

static int one_half(struct rank_script *r, uint32_t slot, bool released)
{
	struct seat *seat = &r->seats[slot];
	enum next_half half = seat->next;
	enum soak_phase phase = (enum soak_phase)half;
	int rc = -1;

	if (half == NEXT_DISPATCH_SEND) {
		if (!may_start(r))
			return 0;
		seat->number = r->started++;
	}
	meet_fault(r, seat, phase, false);
	switch (half) {
	case NEXT_DISPATCH_SEND:
		rc = dispatch_send(r, slot);
		break;
	case NEXT_DISPATCH_RECV:
		rc = dispatch_recv(r, slot);
		break;
	case NEXT_COMBINE_SEND:
		rc = released ? release(r, slot) : combine_send(r, slot);
		break;
	case NEXT_COMBINE_RECV:
		rc = combine_recv(r, slot);
		break;
	}
	if (!rc)
		meet_fault(r, seat, phase, true);
	return rc;
}

static bool all_idle(const struct rank_script *r)
{
	for (uint32_t i = 0; i < r->job->config.nr_slots; i++)
		if (r->seats[i].next != NEXT_DISPATCH_SEND)
			return false;
	return true;
}

static void doze(struct rank_script *r)
{
	const struct scenario *s = r->scenario;

	fleet_pause(r->show->fleet, r->rank, s->half_ns);
	if (s->pause_in && random_below(&r->own, s->pause_in) == 0)
		fleet_pause(r->show->fleet, r->rank, random_next(&r->own) % s->pause_ns);
	if (s->wrong == SOAK_DEAF_RANK && r->rank == 0 && r->started > 1)
		fleet_pause(r->show->fleet, r->rank, 60000 * MS);
}

static int flow(struct rank_script *r)
{
	const struct scenario *s = r->scenario;
	int rc = 0;

	while (!rc && !fleet_is_buried(r->show->fleet, r->rank) && (may_start(r) || !all_idle(r))) {
		uint32_t slot = random_below(&r->flow, r->job->config.nr_slots);
		bool released = s->release_in && random_below(&r->flow, s->release_in) == 0;

		doze(r);
		rc = one_half(r, slot, released);
	}
	return rc;
}

/* ---- from joining to leaving ----------------------------------------------------------------- */

/* Every rank arrives once in each phase of a round: more than that was delivered twice. A release
 * may still be on its way. */
static void check_deliveries(struct rank_script *r)
{
	for (uint32_t slot = 0; slot < r->job->config.nr_slots; slot++)
		for (int phase = 0; phase < NR_PHASES; phase++) {
			const struct slot *s = &r->moe->slots[slot];
			uint32_t most = s->rounds[phase] +
					(phase == TERN_PHASE_COMBINE && s->state == SLOT_RELEASED);
			const struct event_count *events =
				(const struct event_count *)(const void *)own(
					r->moe, layout_event_count(&r->moe->layout, slot,
							(enum tern_phase)phase));
			uint32_t count = atomic_load_explicit(&events->count, memory_order_relaxed);

			if (count > most * r->moe->nr_ranks)
				broken(r, "slot %u, phase %d: %u arrivals in %u rounds of %u ranks",
					slot, phase, count, most, r->moe->nr_ranks);
		}
}

static void exchange(struct rank_script *r)
{
	int rc;

	fleet_does(r->show->fleet, r->rank, "tern_moe_create");
	rc = tern_moe_create(r->group, &r->job->config, &r->moe);
	if (rc) {
		ended_by(r, rc, "tern_moe_create");
		return;
	}
	r->fate->creating = false;
	rc = flow(r);
	if (!rc && !fleet_is_buried(r->show->fleet, r->rank))
		check_deliveries(r);
	doze(r);
	fleet_does(r->show->fleet, r->rank, "tern_moe_destroy");
	tern_moe_destroy(r->moe);
}

void rank_script(struct fleet *fleet, uint32_t rank, void *ctx)
{
	struct show *show = ctx;
	struct rank_script *r = calloc(1, sizeof(*r));
	int rc;

	if (!r) {
		snprintf(show->fates[rank].wrong, sizeof(show->fates[rank].wrong), "no memory");
		return;
	}
	*r = (struct rank_script){.show = show,
		.scenario = show->scenario,
		.job = &show->scenario->job,
		.fate = &show->fates[rank],
		.rank = rank,
		.flow = show->scenario->flow_seed,
		.own = hash2(show->scenario->flow_seed, rank)};
	r->fate->creating = true;
	r->out_stride = job_y_bytes(r->job) + show->scenario->rows_apart;
	r->out = need(r, r->job->config.max_tokens * r->out_stride);
	if (rank == 0 && r->scenario->trigger.phase == SOAK_ANY_TIME &&
		r->scenario->trigger.fault != SOAK_NO_FAULT)
		pull(r);
	fleet_does(fleet, rank, "tern_group_create");
	rc = fleet_join(fleet, rank, &r->group);
	if (rc) {
		ended_by(r, rc, "tern_group_create");
	} else {
		exchange(r);
		doze(r);
		fleet_does(fleet, rank, "tern_group_destroy");
		if (tern_group_destroy(r->group))
			broken(r, "tern_group_destroy: %s", tern_last_error());
	}
	free(r->out);
	free(r);
}
