/* SPDX-License-Identifier: Apache-2.0 */
/* When a proxy has no reason to sleep: its network moves what makes no event, or a peer says that
 * more comes, among so many bytes of it, however fast they go. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "engine/inside.h"
#include <cmocka.h>

#include "tests/engine/fates.h"
#include "tests/exchange/ranks.h"

#define NR_PAGES 128u
#define PAGE_BYTES 65536u

struct words {
	uint64_t last;
	uint32_t nr;
};

/* Each word of more moves the time until which the receiver stays awake. */
static void count_words(struct world *world)
{
	struct words *words = world->watch_ctx;

	words->nr += world->engines[1]->awake_until_ns != words->last;
	words->last = world->engines[1]->awake_until_ns;
}

static uint32_t words_of_more(uint32_t caps)
{
	struct world *world = open_world(2, caps, 0);
	struct words words = {0};
	uint32_t same[NR_PAGES] = {0};
	struct tern_paged_write w = {.size = sizeof(w),
		.peer = 1,
		.local = world->regions[0],
		.remote = world->remotes[0][1],
		.local_pages = same,
		.remote_pages = same,
		.nr_pages = NR_PAGES,
		.page_bytes = PAGE_BYTES,
		.local_stride = PAGE_BYTES,
		.remote_stride = PAGE_BYTES};
	uint64_t from = world->now_ns;
	tern_op op;

	world->watch = count_words;
	world->watch_ctx = &words;
	assert_int_equal(tern_engine_write_pages(world->engines[0], &w, &op), 0);
	expect_end(world, 0, op, 0, "");
	world->watch = NULL;
	assert_true(world->now_ns - from < AWAKE_NS / 4); /* time alone would make one word */
	close_world(world);
	return words.nr;
}

/* 8 MiB, all within the time in which one word would do. */
static void more_among_the_bytes(void **state)
{
	(void)state;
	assert_in_range(words_of_more(TRANSPORT_ORDERED | TRANSPORT_TARGET_POLLS), 3, 5);
	assert_int_equal(words_of_more(TRANSPORT_ORDERED), 0);
}

static void what_moves_is_news(void **state)
{
	struct world *world = open_world(2, TRANSPORT_ORDERED, 0);
	tern_engine *engine = world->engines[0];

	(void)state;
	settle_ns(world, 100000);
	assert_false(engine_step(engine, world->now_ns));
	engine->nics[0].transport->moved = true;
	assert_true(engine_step(engine, world->now_ns));
	engine->nics[0].transport->moved = false;
	assert_false(engine_step(engine, world->now_ns));
	close_world(world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(more_among_the_bytes),
		cmocka_unit_test(what_moves_is_news),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
