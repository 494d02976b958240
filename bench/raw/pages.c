/* SPDX-License-Identifier: Apache-2.0 */
/* tern-raw-pages: the pages of a KV cache by libfabric's own writes and nothing else, to hold the
 * engine against: `tern run -n 2 -- tern-raw-pages PAGES PAGE_BYTES ROUNDS AHEAD`. In a round rank
 * 0 writes all pages from where they lie to where they belong, the last of them with an immediate;
 * rank 1 answers with an immediate of its own when it has come. AHEAD rounds are under way at a
 * time. The endpoint, its provider and its device are opened like the engine's. Prints the rate of
 * all rounds but the first ones, from one answer to the last, as JSON. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/private_memory.h"
#include "engine/engine.h"
#include "group/group.h"
#include "transport/ofi/ofi.h"

#define BATCH 16
#define UNDER_WAY 256 /* as the engine's peer_depth */
#define WARM 3

struct pages {
	tern_group *group;
	uint32_t rank, nr;
	uint64_t page_bytes, bytes;
	struct transport *transport;
	uint8_t *memory;
	struct transport_region *region;
	uint64_t remote_address, remote_key;
	struct fi_context2 contexts[UNDER_WAY];
	uint32_t nr_posted, nr_ended, nr_arrived;
};

struct card {
	uint32_t bytes;
	uint8_t address[TRANSPORT_ADDRESS_BYTES];
	struct transport_key key;
};

/* Where the i-th page lies, and where it goes: scattered, each once; as bench/python/pages.py. */
static uint32_t from_page(const struct pages *p, uint32_t i)
{
	return (uint32_t)(((uint64_t)i * 7919 + 1) % p->nr);
}

static uint32_t to_page(const struct pages *p, uint32_t i)
{
	return (uint32_t)(((uint64_t)i * 104729 + 5) % p->nr);
}

static uint64_t word_at(uint32_t page, uint64_t i)
{
	return (page + 1) * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u;
}

static int open_transport(struct pages *p)
{
	struct transport_info info;
	int rc;

	if (!p->group->engine)
		return fail(TERN_ERR_UNSUPPORTED, "nothing goes over a network");
	rc = engine_open_beside(p->group->engine, &p->transport, &info);
	if (!rc && p->transport->ops != &transport_ofi)
		rc = fail(TERN_ERR_UNSUPPORTED, "the engine runs over %s, not over libfabric",
			info.name);
	return rc;
}

static int make_memory(struct pages *p, struct transport_key *key)
{
	p->memory = private_map(p->bytes, PRIVATE_DENSE);
	if (!p->memory)
		return fail(TERN_ERR_NOMEM, "no memory for %u pages", p->nr);
	for (uint64_t i = 0; i < p->bytes / 8 && !p->rank; i++)
		((uint64_t *)(void *)p->memory)[i] =
			word_at((uint32_t)(i * 8 / p->page_bytes), i % (p->page_bytes / 8));
	return p->transport->ops->reg(p->transport, p->memory, p->bytes, &p->region, key);
}

static int meet(struct pages *p)
{
	struct card mine = {.bytes = sizeof(mine.address)}, all[2];
	uint32_t other = !p->rank;
	int rc = open_transport(p);

	rc = rc ? rc : make_memory(p, &mine.key);
	rc = rc ? rc : p->transport->ops->address(p->transport, mine.address, &mine.bytes);
	rc = group_agree_status(p->group, rc, "raw pages");
	rc = rc ? rc : group_allgather(p->group, &mine, all, sizeof(mine));
	if (rc)
		return rc;
	p->remote_address = all[other].key.address;
	p->remote_key = all[other].key.key;
	rc = p->transport->ops->connect(p->transport, other, all[other].address, all[other].bytes);
	return group_agree_status(p->group, rc, "raw pages");
}

static int greet(struct pages *p)
{
	uint64_t deadline = clock_ns() + (uint64_t)p->group->wait_ms * 1000000;
	struct transport_event events[BATCH];
	uint8_t here = 0, both[2];
	int rc = 0;

	while (ofi_of(p->transport)->nr_greeting && rc >= 0) {
		rc = p->transport->ops->poll(p->transport, events, BATCH);
		if (rc >= 0 && clock_ns() > deadline)
			rc = fail(TERN_ERR_TIMEOUT, "raw pages: the peer cannot be reached");
		sched_yield();
	}
	/* Its greeting may wait for ours. */
	for (uint64_t until = clock_ns() + 50000000; clock_ns() < until && rc >= 0;)
		rc = p->transport->ops->poll(p->transport, events, BATCH);
	return rc < 0 ? rc : group_allgather(p->group, &here, both, 1);
}

/* ---- the writes ------------------------------------------------------------------------------ */

static int poll_queue(struct pages *p)
{
	struct ofi *o = ofi_of(p->transport);
	struct fi_cq_data_entry entries[BATCH];
	struct fi_cq_err_entry err = {0};
	int64_t got = fi_cq_read(o->cq, entries, BATCH);

	if (got == -FI_EAGAIN || got == -FI_EINTR)
		return 0;
	if (got == -FI_EAVAIL && fi_cq_readerr(o->cq, &err, 0) >= 0)
		return fail(TERN_ERR_SYSTEM, "raw pages: %s", o->library.strerror(err.err));
	if (got < 0)
		return ofi_fail(o, got, "raw pages: reading the completion queue");
	for (int64_t i = 0; i < got; i++)
		if (entries[i].flags & FI_REMOTE_CQ_DATA)
			p->nr_arrived++;
		else if (!(entries[i].flags & FI_REMOTE_WRITE))
			p->nr_ended++;
	return (int)got;
}

static int until(struct pages *p, const uint32_t *word, uint32_t value)
{
	uint64_t deadline = 0;
	int rc = 0;

	for (uint32_t nr_empty = 1; (int32_t)(*word - value) < 0 && rc >= 0; nr_empty++) {
		rc = poll_queue(p);
		if (rc)
			continue;
		sched_yield();
		if (nr_empty % 256)
			continue;
		deadline = deadline ? deadline : clock_ns() + (uint64_t)p->group->wait_ms * 1000000;
		if (clock_ns() > deadline)
			rc = fail(TERN_ERR_TIMEOUT, "raw pages: nothing comes");
	}
	return rc < 0 ? rc : 0;
}

static int write_to_peer(
	struct pages *p, uint64_t from, uint64_t to, uint64_t bytes, bool immediate)
{
	struct ofi *o = ofi_of(p->transport);
	fi_addr_t peer = o->peers[!p->rank].address;
	void *context = &p->contexts[p->nr_posted % UNDER_WAY];
	int64_t rc;
	int got = 0;

	got = until(p, &p->nr_ended, p->nr_posted + 1 - UNDER_WAY);
	do {
		rc = immediate ? fi_writedata(o->ep, p->memory + from, bytes, p->region->desc, 1,
					 peer, p->remote_address + to, p->remote_key, context)
			       : fi_write(o->ep, p->memory + from, bytes, p->region->desc, peer,
					 p->remote_address + to, p->remote_key, context);
		if (rc == -FI_EAGAIN)
			got = poll_queue(p);
	} while (rc == -FI_EAGAIN && got >= 0);
	if (got < 0)
		return got;
	p->nr_posted += !rc;
	return rc ? ofi_fail(o, rc, "raw pages: writing") : 0;
}

/* Rank 0's, which has come as far as this many answers. */
static int send_round(struct pages *p, uint32_t answers)
{
	int rc = 0;

	for (uint32_t i = 0; i < p->nr && !rc; i++)
		rc = write_to_peer(p, from_page(p, i) * p->page_bytes,
			to_page(p, i) * p->page_bytes, p->page_bytes, i == p->nr - 1);
	return rc ? rc : until(p, &p->nr_arrived, answers);
}

static int answer_round(struct pages *p, uint32_t round)
{
	int rc = until(p, &p->nr_arrived, round);

	return rc ? rc : write_to_peer(p, 0, 0, 8, true);
}

/* What rank 1 answers with lands in a page of rank 0 that was sent already: it is written again. */
static uint64_t nr_wrong(const struct pages *p)
{
	uint64_t wrong = 0, words = p->page_bytes / 8;

	for (uint32_t i = 0; i < p->nr; i++)
		for (uint64_t w = from_page(p, i) ? 0 : 1; w < words; w++)
			wrong += ((uint64_t *)(void *)p->memory)[to_page(p, i) * words + w] !=
				 word_at(from_page(p, i), w);
	return wrong;
}

/* The time from the answer to the WARM-th round to that of the last one. */
static int run_rounds(struct pages *p, uint32_t nr_rounds, uint32_t ahead, uint64_t *took_ns)
{
	uint32_t nr = nr_rounds + WARM;
	uint64_t from = 0;
	int rc = 0;

	for (uint32_t i = 1; i <= nr && !rc; i++) {
		rc = p->rank ? answer_round(p, i) : send_round(p, i >= ahead ? i + 1 - ahead : 0);
		if (!from && p->nr_arrived >= WARM)
			from = clock_ns();
	}
	rc = rc ? rc : until(p, &p->nr_arrived, nr);
	*took_ns = clock_ns() - from;
	return rc ? rc : until(p, &p->nr_ended, p->nr_posted);
}

static int measure(struct pages *p, uint32_t nr_rounds, uint32_t ahead)
{
	uint8_t here = 0, both[2];
	uint64_t took;
	int rc = run_rounds(p, nr_rounds, ahead, &took);

	rc = rc ? rc : group_allgather(p->group, &here, both, 1);
	if (!rc && p->rank && nr_wrong(p))
		rc = fail(TERN_ERR_PROTOCOL, "raw pages: %llu words are wrong",
			(unsigned long long)nr_wrong(p));
	if (!rc && !p->rank)
		printf("{\"pages\": %u, \"page_bytes\": %llu, \"ahead\": %u, \"gb_s\": %.3f}\n",
			p->nr, (unsigned long long)p->page_bytes, ahead,
			(double)p->bytes * nr_rounds / (double)took);
	return rc;
}

int main(int argc, char **argv)
{
	struct tern_group_config config;
	struct pages p = {.nr = argc > 1 ? (uint32_t)atoi(argv[1]) : 512,
		.page_bytes = argc > 2 ? (uint64_t)atoi(argv[2]) : 16384};
	int rounds = argc > 3 ? atoi(argv[3]) : 50, ahead = argc > 4 ? atoi(argv[4]) : 4, rc;

	tern_group_config_init(&config);
	config.transport = "ofi:tcp;ofi_rxm";
	config.force_engine = 1;
	rc = tern_boot_env(&config.boot);
	rc = rc ? rc : tern_group_create(&config, &p.group);
	if (!rc && (p.group->nr_ranks != 2 || !p.nr || p.page_bytes < 8 || p.page_bytes % 8 ||
			   p.page_bytes > 1u << 24 || rounds < 1 || ahead < 1 || ahead > 1024))
		rc = fail(TERN_ERR_INVALID,
			"two ranks, PAGES, PAGE_BYTES in multiples of 8, ROUNDS and AHEAD are "
			"needed");
	if (!rc) {
		p.rank = (uint32_t)p.group->rank;
		p.bytes = p.nr * p.page_bytes;
		rc = meet(&p);
	}
	rc = rc ? rc : greet(&p);
	rc = rc ? rc : measure(&p, (uint32_t)rounds, (uint32_t)ahead);
	if (rc)
		fprintf(stderr, "tern-raw-pages: %s\n", tern_last_error());
	if (p.transport)
		p.transport->ops->close(p.transport);
	private_unmap(p.memory, p.bytes);
	tern_group_destroy(p.group);
	return rc ? 1 : 0;
}
