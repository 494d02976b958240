/* SPDX-License-Identifier: Apache-2.0 */
/* Every operation of engines whose ranks are reached over different networks, the real ones. Ranks
 * are threads, so ThreadSanitizer sees what Tern does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/engine.h"
#include "tests/engine/shared.h"

#define RANKS 4
#define WAIT 20000
#define PLACE 65536u               /* for each rank, to send from and to receive into */
#define INCOMING (RANKS * PLACE)   /* where the latter begin */
#define WORDS (2u * RANKS * PLACE) /* signals */
#define BYTES (WORDS + 4096u)
#define STRIPE 20000u
#define PUTS 4u /* to each rank */

struct networks {
	const char *most, *last; /* of the last rank */
	uint32_t nr_nics;
	bool fences; /* or order: on all of them */
	_Atomic int unsupported;
};

struct player {
	struct rank *rank;
	tern_engine *engine;
	tern_region *region;
	tern_remote *remotes[RANKS];
	tern_peers *peers;
	uint8_t *memory;
	uint32_t round;
};

static uint8_t pattern(const struct player *p, int from, int to, uint64_t at)
{
	return (uint8_t)(at * 7 + at / 251 + (uint64_t)from * 31 + (uint64_t)to * 57 +
			 p->round * 11);
}

static void fill(struct player *p)
{
	p->round++;
	for (int to = 0; to < RANKS; to++)
		for (uint32_t i = 0; i < PLACE; i++)
			p->memory[(uint32_t)to * PLACE + i] = pattern(p, p->rank->rank, to, i);
}

static void expect_bytes(struct player *p, int from, uint64_t at, uint64_t sent_from,
	uint64_t bytes, const char *what)
{
	const uint8_t *came = p->memory + INCOMING + (uint64_t)from * PLACE;

	for (uint64_t i = 0; i < bytes; i++)
		if (came[at + i] != pattern(p, from, p->rank->rank, sent_from + i)) {
			rank_fails(p->rank, "%s: byte %llu from rank %d is wrong", what,
				(unsigned long long)i, from);
			return;
		}
}

static void must(struct player *p, int rc, const char *what)
{
	if (rc)
		rank_fails(p->rank, "%s: %s", what, tern_last_error());
}

static void meet(struct player *p)
{
	struct tern_barrier barrier = {.size = sizeof(barrier), .immediate = 1, .peers = p->peers};
	tern_op op;

	must(p, tern_engine_barrier(p->engine, &barrier, &op), "barrier");
	must(p, *p->rank->failure ? 0 : tern_op_wait(p->engine, op, WAIT), "barrier");
}

static void expect_immediates(struct player *p, uint32_t value, uint64_t count)
{
	struct tern_expect expect = {.size = sizeof(expect), .immediate = value, .count = count};
	tern_op op;

	must(p, tern_engine_expect(p->engine, &expect, &op), "expecting");
	must(p, *p->rank->failure ? 0 : tern_op_wait(p->engine, op, WAIT), "expecting");
}

static struct tern_write write_to(struct player *p, int to, uint64_t bytes, uint32_t immediate)
{
	return (struct tern_write){.size = sizeof(struct tern_write),
		.peer = (uint32_t)to,
		.flags = TERN_IMMEDIATE,
		.immediate = immediate,
		.local = p->region,
		.remote = p->remotes[to],
		.local_offset = (uint64_t)to * PLACE,
		.remote_offset = INCOMING + (uint64_t)p->rank->rank * PLACE,
		.bytes = bytes};
}

/* Up to some stripes; to itself too. */
static void writes(struct player *p)
{
	static const uint64_t sizes[] = {0, 1, 8, 4096, STRIPE, PLACE};

	for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		tern_op ops[RANKS] = {0};

		fill(p);
		for (int to = 0; to < RANKS; to++) {
			struct tern_write w = write_to(p, to, sizes[i], 100 + i);

			must(p, tern_engine_write(p->engine, &w, &ops[to]), "write");
		}
		expect_immediates(p, 100 + i, RANKS);
		for (int r = 0; r < RANKS && !*p->rank->failure; r++) {
			expect_bytes(p, r, 0, 0, sizes[i], "write");
			must(p, tern_op_wait(p->engine, ops[r], WAIT), "write");
		}
		meet(p);
	}
}

static void pages(struct player *p)
{
	uint32_t local[16], remote[16];
	tern_op ops[RANKS] = {0};

	for (uint32_t i = 0; i < 16; i++) {
		local[i] = i * 7 % 16;
		remote[i] = i * 11 % 16;
	}
	fill(p);
	for (int to = 0; to < RANKS; to++) {
		struct tern_paged_write w = {.size = sizeof(w),
			.peer = (uint32_t)to,
			.flags = TERN_IMMEDIATE,
			.immediate = 200,
			.nr_pages = 16,
			.local = p->region,
			.remote = p->remotes[to],
			.page_bytes = 3000,
			.local_offset = (uint64_t)to * PLACE,
			.remote_offset = INCOMING + (uint64_t)p->rank->rank * PLACE,
			.local_stride = 3100,
			.remote_stride = 4000,
			.local_pages = local,
			.remote_pages = remote};

		must(p, tern_engine_write_pages(p->engine, &w, &ops[to]), "pages");
	}
	expect_immediates(p, 200, RANKS);
	for (int r = 0; r < RANKS && !*p->rank->failure; r++) {
		for (uint32_t i = 0; i < 16; i++)
			expect_bytes(p, r, remote[i] * 4000u, local[i] * 3100u, 3000, "pages");
		must(p, tern_op_wait(p->engine, ops[r], WAIT), "pages");
	}
	meet(p);
}

static void scatters(struct player *p)
{
	struct tern_slice slices[RANKS];
	struct tern_scatter scatter = {.size = sizeof(scatter),
		.flags = TERN_IMMEDIATE,
		.peers = p->peers,
		.local = p->region,
		.slices = slices};
	tern_op op = 0;

	fill(p);
	for (int to = 0; to < RANKS; to++)
		slices[to] = (struct tern_slice){.local_offset = (uint64_t)to * PLACE,
			.remote_offset = INCOMING + (uint64_t)p->rank->rank * PLACE,
			.bytes = (uint64_t)to * 15000,
			.immediate = 300};
	must(p, tern_engine_scatter(p->engine, &scatter, &op), "scatter");
	expect_immediates(p, 300, RANKS);
	for (int r = 0; r < RANKS; r++)
		expect_bytes(p, r, 0, 0, (uint64_t)p->rank->rank * 15000, "scatter");
	must(p, *p->rank->failure ? 0 : tern_op_wait(p->engine, op, WAIT), "scatter");
	meet(p);
}

/* More than there are credits, in order for each peer. */
static void messages(struct player *p)
{
	uint32_t next[RANKS] = {0};

	for (uint32_t i = 0; i < 20; i++)
		for (uint32_t to = 0; to < RANKS; to++) {
			struct tern_send send = {
				.size = sizeof(send), .peer = to, .data = &i, .bytes = sizeof(i)};

			must(p, tern_engine_send(p->engine, &send, NULL), "send");
		}
	for (int i = 0; i < 20 * RANKS && !*p->rank->failure; i++) {
		uint32_t peer = 0, value, bytes = sizeof(value);

		must(p, tern_engine_recv(p->engine, &peer, &value, &bytes, WAIT), "recv");
		if (!*p->rank->failure && value != next[peer]++)
			rank_fails(p->rank, "message %u of rank %u came as number %u", value, peer,
				next[peer] - 1);
	}
	meet(p);
}

static void put_all(struct player *p, tern_op group)
{
	for (uint32_t i = 0; i < PUTS * RANKS; i++) {
		uint32_t to = i % RANKS, own = i / RANKS * 10000;
		struct tern_put put = {.peer = to,
			.local = p->region,
			.remote = p->remotes[to],
			.local_offset = to * PLACE + own,
			.remote_offset = INCOMING + (uint32_t)p->rank->rank * PLACE + own,
			.bytes = 9000,
			.signal_remote = p->remotes[to],
			.signal_offset = WORDS + 8 * ((uint32_t)p->rank->rank * PUTS + i / RANKS),
			.signal = p->round};

		must(p, tern_engine_put(p->engine, group, &put, 0), "put");
	}
}

static void signals(struct player *p, enum tern_signal_policy policy, bool refused)
{
	bool words = policy != BASELINE_PUT_ONLY && policy != TERN_SIGNAL_IMMEDIATE;
	tern_op group;
	int rc = engine_put_group(p->engine, policy, PUTS * RANKS, NULL, NULL, &group);

	if (refused) {
		if (rc != TERN_ERR_UNSUPPORTED)
			rank_fails(p->rank, "policy %d returned %d", policy, rc);
		return;
	}
	must(p, rc, "group of puts");
	if (rc)
		return;
	fill(p);
	put_all(p, group);
	must(p, tern_op_wait(p->engine, group, WAIT), "puts");
	meet(p); /* all puts and signals have landed */
	if (policy == TERN_SIGNAL_IMMEDIATE)
		expect_immediates(p, p->round, PUTS * RANKS);
	for (uint32_t i = 0; i < PUTS * RANKS; i++) {
		uint64_t word;

		expect_bytes(p, (int)(i / PUTS), i % PUTS * 10000, i % PUTS * 10000, 9000, "put");
		memcpy(&word, p->memory + WORDS + 8 * i, sizeof(word));
		if (words && word != p->round)
			rank_fails(p->rank, "policy %d: signal %u of rank %u is %llu", policy,
				i % PUTS, i / PUTS, (unsigned long long)word);
	}
	meet(p);
}

static void play(struct player *p, const struct networks *networks)
{
	static const uint32_t ranks[RANKS] = {0, 1, 2, 3};

	must(p, share_memory(p->rank, p->engine, p->memory, BYTES, &p->region, p->remotes),
		"sharing memory");
	must(p, tern_peers_create(p->engine, ranks, p->remotes, RANKS, &p->peers), "listing");
	for (int i = 0; i < scaled(8) && !*p->rank->failure; i++) {
		writes(p);
		pages(p);
		scatters(p);
		messages(p);
		for (int policy = BASELINE_PUT_ONLY;
			policy <= TERN_SIGNAL_IMMEDIATE && !*p->rank->failure; policy++)
			signals(p, (enum tern_signal_policy)policy,
				!networks->fences && (policy == TERN_SIGNAL_NIC_FENCE ||
							     policy == TERN_SIGNAL_PERSEUS));
	}
}

static void body(struct rank *rank)
{
	struct networks *networks = rank->ctx;
	struct player p = {.rank = rank, .memory = calloc(1, BYTES)};
	struct tern_engine_config config;
	int rc;

	tern_engine_config_init(&config);
	config.transport = rank->rank + 1 == RANKS ? networks->last : networks->most;
	config.nr_nics = networks->nr_nics;
	config.stripe_bytes = STRIPE;
	rc = tern_engine_create(rank->group, &config, &p.engine);
	if (rc == TERN_ERR_UNSUPPORTED)
		atomic_store(&networks->unsupported, 1);
	else if (rc)
		rank_fails(rank, "%s", tern_last_error());
	else
		play(&p, networks);
	must(&p, tern_engine_destroy(p.engine), "destroying");
	free(p.memory);
}

static void over(const char *most, const char *last, uint32_t nr_nics, bool fences)
{
	struct networks networks = {
		.most = most, .last = last, .nr_nics = nr_nics, .fences = fences};
	const char *failure = run_ranks(RANKS, body, &networks);

	if (failure)
		fail_msg("%s and %s: %s", most, last, failure);
	if (networks.unsupported) {
		print_message("# SKIP this libfabric lacks %s\n", last);
		skip();
	}
}

static void shared_memory(void **state)
{
	(void)state;
	over("shm", "shm", 1, true);
}

static void shared_memory_and_tcp(void **state)
{
	(void)state;
	over("shm+ofi:tcp;ofi_rxm", "ofi", 1, true);
}

/* Writes are cut over two NICs, of each network its own. */
static void two_nics_of_each(void **state)
{
	(void)state;
	over("shm+ofi:tcp;ofi_rxm", "ofi", 2, true);
}

/* The last rank's network keeps no order and has no fences. */
static void shared_memory_and_udp(void **state)
{
	(void)state;
	over("shm+ofi:udp;ofi_rxd", "ofi:udp;ofi_rxd", 1, false);
}

/* When all call all at once on a busy machine, tcp may have accepted a call that is not needed any
 * more, and loses its memory when its endpoint is closed (docs/transports.md). What this library
 * forgets of libfabric's the conformance suite finds. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
	return "leak:libfabric.so";
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(shared_memory),
		cmocka_unit_test(shared_memory_and_tcp),
		cmocka_unit_test(two_nics_of_each),
		cmocka_unit_test(shared_memory_and_udp),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
