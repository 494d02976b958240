/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/raw/raw.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "base/error.h"
#include "group/group.h"
#include "transport/ofi/ofi.h"
#include "base/private_memory.h"

#define BATCH 16
#define LEAST_BYTES 8 /* of a write: not every provider takes none */
#define POISON 0xa5
#define LOOK_EVERY 256 /* empty polls between looks at the clock */

/* The two halves of a round, and the barrier. Two parities each: who is through may begin the next
 * of the kind before everybody has seen all of this one. */
#define BARRIER NR_RAW_HALVES
#define NR_KINDS (NR_RAW_HALVES + 1)

struct remote {
	uint64_t address, key; /* of its receive memory */
};

struct raw {
	tern_group *group;
	uint32_t rank, nr_ranks, nr_sets, set;
	struct transport *transport;
	struct engine_traffic *marked, *now; /* [nr_ranks] */
	/* [source][set][half][destination]; until raw_prepare this rank's own part alone */
	struct engine_traffic *traffic;
	uint64_t slot_bytes, memory_bytes;
	uint8_t *send, *recv; /* [NR_KINDS][nr_ranks] slots: by destination, by source */
	struct transport_region *send_region, *recv_region;
	struct remote *remotes;       /* [nr_ranks] */
	struct fi_context2 *contexts; /* [nr_ranks]: one write to a peer at a time */
	uint32_t nr_under_way, arrived[2 * NR_KINDS], turns[NR_KINDS];
	uint64_t round, nr_wrong;
};

static struct engine_traffic *traffic_of(
	const struct raw *raw, uint32_t source, uint32_t set, uint32_t half)
{
	return raw->traffic +
	       (((size_t)source * raw->nr_sets + set) * NR_RAW_HALVES + half) * raw->nr_ranks;
}

/* Whether this kind of write goes from source to destination, and how long it is. */
static bool is_sent(const struct raw *raw, uint32_t kind, uint32_t source, uint32_t destination)
{
	if (source == destination || kind == BARRIER)
		return source != destination;
	return traffic_of(raw, source, raw->set, kind)[destination].nr_writes > 0;
}

static uint64_t sent_bytes(
	const struct raw *raw, uint32_t kind, uint32_t source, uint32_t destination)
{
	uint64_t bytes =
		kind == BARRIER ? 0 : traffic_of(raw, source, raw->set, kind)[destination].bytes;

	return bytes > LEAST_BYTES ? bytes : LEAST_BYTES;
}

static uint64_t slot_at(const struct raw *raw, uint32_t kind, uint32_t rank)
{
	return ((uint64_t)kind * raw->nr_ranks + rank) * raw->slot_bytes;
}

/* ---- learning -------------------------------------------------------------------------------- */

/* When all ranks are here all that they sent has arrived, so it has been posted. */
static int read_traffic(struct raw *raw, struct engine_traffic *traffic)
{
	uint8_t here = 0, *all = malloc(raw->nr_ranks);
	int rc = all ? group_allgather(raw->group, &here, all, 1)
		     : fail(TERN_ERR_NOMEM, "no memory for a gathering");

	free(all);
	return rc ? rc : engine_traffic(raw->group->engine, traffic);
}

int raw_mark(struct raw *raw)
{
	return read_traffic(raw, raw->marked);
}

int raw_learn(struct raw *raw, uint32_t set, enum raw_half half)
{
	struct engine_traffic *traffic = traffic_of(raw, raw->rank, set, half);
	int rc = read_traffic(raw, raw->now);

	for (uint32_t p = 0; p < raw->nr_ranks && !rc; p++)
		traffic[p] = (struct engine_traffic){
			.nr_writes = raw->now[p].nr_writes - raw->marked[p].nr_writes,
			.bytes = raw->now[p].bytes - raw->marked[p].bytes};
	memcpy(raw->marked, raw->now, raw->nr_ranks * sizeof(*raw->now));
	return rc;
}

/* ---- opening --------------------------------------------------------------------------------- */

static int allocate(struct raw *raw)
{
	size_t nr = raw->nr_ranks;

	raw->marked = calloc(nr, sizeof(*raw->marked));
	raw->now = calloc(nr, sizeof(*raw->now));
	raw->traffic = calloc(nr * nr * raw->nr_sets * NR_RAW_HALVES, sizeof(*raw->traffic));
	raw->remotes = calloc(nr, sizeof(*raw->remotes));
	raw->contexts = calloc(nr, sizeof(*raw->contexts));
	if (!raw->marked || !raw->now || !raw->traffic || !raw->remotes || !raw->contexts)
		return fail(TERN_ERR_NOMEM, "no memory for %zu ranks", nr);
	return 0;
}

static int open_beside(struct raw *raw)
{
	struct transport_info info;
	int rc;

	if (!raw->group->engine)
		return fail(TERN_ERR_UNSUPPORTED,
			"nothing goes over a network: all ranks map each other's memory (try "
			"--nodes, or TERN_FORCE_ENGINE=1)");
	rc = engine_open_beside(raw->group->engine, &raw->transport, &info);
	if (!rc && raw->transport->ops != &transport_ofi)
		rc = fail(TERN_ERR_UNSUPPORTED, "the engine runs over %s, not over libfabric",
			info.name);
	return rc;
}

int raw_open(struct raw **out, tern_group *group, uint32_t nr_sets)
{
	struct raw *raw = calloc(1, sizeof(*raw));
	int rc;

	if (!raw)
		return fail(TERN_ERR_NOMEM, "no memory for raw writes");
	*raw = (struct raw){.group = group,
		.rank = (uint32_t)group->rank,
		.nr_ranks = (uint32_t)group->nr_ranks,
		.nr_sets = nr_sets};
	rc = allocate(raw);
	rc = rc ? rc : open_beside(raw);
	rc = group_agree_status(group, rc, "raw libfabric");
	if (rc)
		raw_close(raw);
	else
		*out = raw;
	return rc;
}

void raw_close(struct raw *raw)
{
	if (!raw)
		return;
	if (raw->transport)
		raw->transport->ops->close(raw->transport); /* regions too */
	private_unmap(raw->send, raw->memory_bytes);
	private_unmap(raw->recv, raw->memory_bytes);
	free(raw->marked);
	free(raw->now);
	free(raw->traffic);
	free(raw->remotes);
	free(raw->contexts);
	free(raw);
}

/* ---- memory and connections ------------------------------------------------------------------ */

static int gather_traffic(struct raw *raw)
{
	size_t own = (size_t)raw->nr_sets * NR_RAW_HALVES * raw->nr_ranks;
	struct engine_traffic *mine = malloc(own * sizeof(*mine));
	int rc = mine ? 0 : fail(TERN_ERR_NOMEM, "no memory for %zu numbers", own);

	rc = group_agree_status(raw->group, rc, "raw libfabric");
	if (!rc) {
		memcpy(mine, traffic_of(raw, raw->rank, 0, 0), own * sizeof(*mine));
		rc = group_allgather(raw->group, mine, raw->traffic, own * sizeof(*mine));
	}
	raw->slot_bytes = 4096;
	for (size_t i = 0; i < own * raw->nr_ranks; i++)
		if (raw->traffic[i].bytes > raw->slot_bytes)
			raw->slot_bytes = (raw->traffic[i].bytes + 4095) / 4096 * 4096;
	free(mine);
	return rc;
}

static int make_memory(struct raw *raw, struct transport_key *key)
{
	const struct transport_ops *ops = raw->transport->ops;
	struct transport_key unused;
	int rc;

	if (raw->slot_bytes > ofi_of(raw->transport)->info->ep_attr->max_msg_size)
		return fail(TERN_ERR_UNSUPPORTED, "a write of %llu bytes",
			(unsigned long long)raw->slot_bytes);
	raw->memory_bytes = NR_KINDS * raw->nr_ranks * raw->slot_bytes;
	raw->send = private_map(raw->memory_bytes, PRIVATE_DENSE);
	raw->recv = private_map(raw->memory_bytes, PRIVATE_DENSE);
	if (!raw->send || !raw->recv)
		return fail(TERN_ERR_NOMEM, "no memory for raw writes: %llu bytes",
			(unsigned long long)raw->memory_bytes);
	rc = ops->reg(raw->transport, raw->send, raw->memory_bytes, &raw->send_region, &unused);
	return rc ? rc
		  : ops->reg(raw->transport, raw->recv, raw->memory_bytes, &raw->recv_region, key);
}

struct card {
	uint32_t bytes;
	uint8_t address[TRANSPORT_ADDRESS_BYTES];
	struct transport_key key;
};

static int exchange_cards(struct raw *raw)
{
	const struct transport_ops *ops = raw->transport->ops;
	struct card mine = {.bytes = sizeof(mine.address)},
		    *all = calloc(raw->nr_ranks, sizeof(*all));
	int rc = all ? make_memory(raw, &mine.key)
		     : fail(TERN_ERR_NOMEM, "no memory for %u addresses", raw->nr_ranks);

	rc = rc ? rc : ops->address(raw->transport, mine.address, &mine.bytes);
	rc = group_agree_status(raw->group, rc, "raw libfabric");
	rc = rc ? rc : group_allgather(raw->group, &mine, all, sizeof(mine));
	for (uint32_t r = 0; r < raw->nr_ranks && !rc; r++) {
		raw->remotes[r] = (struct remote){all[r].key.address, all[r].key.key};
		if (r != raw->rank)
			rc = ops->connect(raw->transport, r, all[r].address, all[r].bytes);
	}
	free(all);
	return group_agree_status(raw->group, rc, "raw libfabric");
}

/* The transport's own greeting. Peers that are through go on polling in the barrier that follows,
 * and their first immediates come here. */
static int connect_all(struct raw *raw)
{
	struct ofi *o = ofi_of(raw->transport);
	uint64_t deadline = clock_ns() + (uint64_t)raw->group->wait_ms * 1000000;
	struct transport_event events[BATCH];
	int rc = 0;

	while (o->nr_greeting && rc >= 0) {
		rc = raw->transport->ops->poll(raw->transport, events, BATCH);
		for (int i = 0; i < rc; i++)
			if (events[i].kind == EVENT_IMMEDIATE && events[i].immediate < 2 * NR_KINDS)
				raw->arrived[events[i].immediate]++;
		if (rc >= 0 && clock_ns() > deadline)
			rc = fail(TERN_ERR_TIMEOUT, "raw libfabric: %u peers cannot be reached",
				o->nr_greeting);
		sched_yield();
	}
	return rc < 0 ? rc : 0;
}

/* Words that tell who sent them, to whom, in which half and from where. */
static uint64_t word_at(uint32_t kind, uint32_t source, uint32_t destination, uint64_t i)
{
	uint64_t who = (uint64_t)kind << 32 | (uint64_t)source << 16 | destination;

	return (who + 1) * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u;
}

static void fill(struct raw *raw)
{
	for (uint32_t kind = 0; kind < NR_KINDS; kind++)
		for (uint32_t p = 0; p < raw->nr_ranks; p++) {
			uint64_t *words = (uint64_t *)(void *)(raw->send + slot_at(raw, kind, p));

			for (uint64_t i = 0; i < raw->slot_bytes / sizeof(*words); i++)
				words[i] = word_at(kind, raw->rank, p, i);
		}
}

int raw_prepare(struct raw *raw)
{
	int rc = gather_traffic(raw);

	rc = rc ? rc : exchange_cards(raw);
	if (rc)
		return rc;
	fill(raw);
	memset(raw->recv, POISON, raw->memory_bytes);
	rc = connect_all(raw);
	return rc ? rc : raw_barrier(raw);
}

/* ---- the writes ------------------------------------------------------------------------------ */

static int queue_failed(struct raw *raw)
{
	struct ofi *o = ofi_of(raw->transport);
	struct fi_cq_err_entry err = {0};

	if (fi_cq_readerr(o->cq, &err, 0) < 0)
		return fail(TERN_ERR_SYSTEM, "raw libfabric: the completion queue failed");
	return fail(TERN_ERR_SYSTEM, "raw libfabric: %s", o->library.strerror(err.err));
}

/* The number of completions taken, or a negative code. */
static int poll_queue(struct raw *raw)
{
	struct ofi *o = ofi_of(raw->transport);
	struct fi_cq_data_entry entries[BATCH];
	int64_t got = fi_cq_read(o->cq, entries, BATCH);

	if (got == -FI_EAGAIN || got == -FI_EINTR)
		return 0;
	if (got < 0)
		return got == -FI_EAVAIL ? queue_failed(raw)
					 : ofi_fail(o, got, "raw: reading the completion queue");
	for (int64_t i = 0; i < got; i++) {
		if (!(entries[i].flags & FI_REMOTE_WRITE))
			raw->nr_under_way--;
		else if ((entries[i].flags & FI_REMOTE_CQ_DATA) && entries[i].data < 2 * NR_KINDS)
			raw->arrived[entries[i].data]++;
	}
	return (int)got;
}

static int post(struct raw *raw, uint32_t kind, uint32_t parity, uint32_t p)
{
	struct ofi *o = ofi_of(raw->transport);
	uint64_t to = slot_at(raw, kind, raw->rank);
	int64_t rc;
	int got = 0;

	do {
		rc = fi_writedata(o->ep, raw->send + slot_at(raw, kind, p),
			sent_bytes(raw, kind, raw->rank, p), raw->send_region->desc,
			2 * kind + parity, o->peers[p].address, raw->remotes[p].address + to,
			raw->remotes[p].key, &raw->contexts[p]);
		if (rc == -FI_EAGAIN)
			got = poll_queue(raw);
	} while (rc == -FI_EAGAIN && got >= 0);
	if (got < 0)
		return got;
	raw->nr_under_way += !rc;
	return rc ? ofi_fail(o, rc, "raw: writing") : 0;
}

/* Until its own writes have ended and those of the others are here. Ranks may share cores: who
 * finds nothing lets the others run. */
static int await(struct raw *raw, uint32_t immediate, uint32_t expected)
{
	uint64_t deadline = 0;
	uint32_t nr_empty = 0;

	while (raw->nr_under_way || raw->arrived[immediate] < expected) {
		int got = poll_queue(raw);

		if (got < 0)
			return got;
		if (got)
			continue;
		sched_yield();
		if (++nr_empty % LOOK_EVERY)
			continue;
		deadline =
			deadline ? deadline : clock_ns() + (uint64_t)raw->group->wait_ms * 1000000;
		if (clock_ns() > deadline)
			return fail(TERN_ERR_TIMEOUT,
				"raw libfabric: %u of %u immediates, %u writes under way",
				raw->arrived[immediate], expected, raw->nr_under_way);
	}
	raw->arrived[immediate] -= expected;
	return 0;
}

static int send_kind(struct raw *raw, uint32_t kind)
{
	uint32_t parity = raw->turns[kind]++ % 2, expected = 0;
	int rc = 0;

	for (uint32_t i = 1; i < raw->nr_ranks && !rc; i++) {
		uint32_t p = (raw->rank + i) % raw->nr_ranks;

		if (is_sent(raw, kind, raw->rank, p))
			rc = post(raw, kind, parity, p);
		expected += is_sent(raw, kind, p, raw->rank);
	}
	return rc ? rc : await(raw, 2 * kind + parity, expected);
}

int raw_run(struct raw *raw, enum raw_half half)
{
	return send_kind(raw, half);
}

int raw_barrier(struct raw *raw)
{
	return send_kind(raw, BARRIER);
}

/* ---- did they arrive? ------------------------------------------------------------------------ */

/* The first and the last 8 bytes of each write carry the round's number. */
static void stamp(struct raw *raw)
{
	raw->round++;
	for (uint32_t kind = 0; kind < NR_RAW_HALVES; kind++)
		for (uint32_t p = 0; p < raw->nr_ranks; p++) {
			uint8_t *slot = raw->send + slot_at(raw, kind, p);

			memcpy(slot, &raw->round, sizeof(raw->round));
			memcpy(slot + sent_bytes(raw, kind, raw->rank, p) - sizeof(raw->round),
				&raw->round, sizeof(raw->round));
		}
}

static bool is_stamped(const struct raw *raw, const uint8_t *slot, uint64_t bytes)
{
	return !memcmp(slot, &raw->round, sizeof(raw->round)) &&
	       !memcmp(slot + bytes - sizeof(raw->round), &raw->round, sizeof(raw->round));
}

static void look_at_stamps(struct raw *raw)
{
	for (uint32_t kind = 0; kind < NR_RAW_HALVES && raw->round; kind++)
		for (uint32_t p = 0; p < raw->nr_ranks; p++)
			if (is_sent(raw, kind, p, raw->rank))
				raw->nr_wrong += !is_stamped(raw, raw->recv + slot_at(raw, kind, p),
					sent_bytes(raw, kind, p, raw->rank));
}

/* Sets are of different lengths: the last stamp of another one is in the middle of this one's
 * words. */
static void restore(struct raw *raw)
{
	for (uint32_t kind = 0; kind < NR_RAW_HALVES && raw->round; kind++)
		for (uint32_t p = 0; p < raw->nr_ranks; p++) {
			uint64_t last = sent_bytes(raw, kind, raw->rank, p) - sizeof(uint64_t);
			uint64_t words[2] = {word_at(kind, raw->rank, p, last / 8),
				word_at(kind, raw->rank, p, last / 8 + 1)};

			memcpy(raw->send + slot_at(raw, kind, p) + last / 8 * 8, words,
				last % 8 ? 16 : 8);
		}
}

int raw_begin(struct raw *raw, uint32_t set)
{
	look_at_stamps(raw);
	restore(raw);
	raw->set = set;
	stamp(raw);
	return raw_barrier(raw);
}

static bool is_as_sent(const struct raw *raw, uint32_t kind, uint32_t source)
{
	const uint8_t *slot = raw->recv + slot_at(raw, kind, source);
	uint64_t bytes = sent_bytes(raw, kind, source, raw->rank), end = bytes - sizeof(uint64_t);

	for (uint64_t at = sizeof(uint64_t); at < end; at += sizeof(uint64_t)) {
		uint64_t word = word_at(kind, source, raw->rank, at / sizeof(word));

		if (memcmp(slot + at, &word, end - at < sizeof(word) ? end - at : sizeof(word)))
			return false;
	}
	return is_stamped(raw, slot, bytes);
}

int raw_check(struct raw *raw, uint64_t *nr_wrong)
{
	int rc = 0;

	look_at_stamps(raw);
	raw->round += !raw->round; /* restored even if no round was run */
	for (uint32_t set = 0; set < raw->nr_sets && !rc; set++) {
		memset(raw->recv, POISON, raw->memory_bytes);
		restore(raw);
		raw->set = set;
		stamp(raw);
		rc = raw_barrier(raw);
		rc = rc ? rc : raw_run(raw, RAW_DISPATCH);
		rc = rc ? rc : raw_run(raw, RAW_COMBINE);
		for (uint32_t kind = 0; kind < NR_RAW_HALVES && !rc; kind++)
			for (uint32_t p = 0; p < raw->nr_ranks; p++)
				raw->nr_wrong += is_sent(raw, kind, p, raw->rank) &&
						 !is_as_sent(raw, kind, p);
	}
	*nr_wrong = raw->nr_wrong;
	return rc;
}

double raw_bytes(const struct raw *raw)
{
	uint64_t bytes = 0;

	for (uint32_t set = 0; set < raw->nr_sets; set++)
		for (uint32_t half = 0; half < NR_RAW_HALVES; half++)
			for (uint32_t p = 0; p < raw->nr_ranks; p++)
				bytes += traffic_of(raw, raw->rank, set, half)[p].bytes;
	return (double)bytes / raw->nr_sets;
}
