/* SPDX-License-Identifier: Apache-2.0 */
/* Every public struct as an older header has it, and as a newer one: what the library reads of it,
 * and that it writes no byte behind it. */
#include "base/struct_size.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#define HIDDEN 16
#define TOKENS 4
#define NEWER 24 /* bytes that a newer header has more */
#define GUARD 0xa5
#define WAIT 60000

static tern_group *group;
static tern_moe *moe;
static tern_engine *engine;
static tern_region *region;
static tern_remote *remote;
static tern_peers *peers;
static uint16_t x[TOKENS * HIDDEN] __attribute__((aligned(16))),
	out[TOKENS * HIDDEN] __attribute__((aligned(16)));
static const int32_t ids[TOKENS] = {0, 1, 1, 0};
static uint8_t memory[256];

/* ---- a caller's struct ----------------------------------------------------------------------- */

enum rest {
	ZEROS,
	FIRST_SET,
	LAST_SET
};

static unsigned char shaped[STRUCT_MOST + 64] __attribute__((aligned(16)));
static size_t shaped_size;
static enum rest shaped_rest;

/* `full` as a header has it whose struct has shaped_size bytes, in front of bytes that are
 * nobody's. */
static void *shape(const struct struct_kind *kind, const void *full)
{
	size_t both = shaped_size < kind->known ? shaped_size : kind->known;

	memset(shaped, GUARD, sizeof(shaped));
	if (shaped_size <= STRUCT_MOST)
		memset(shaped, 0, shaped_size);
	memcpy(shaped, full, both < sizeof(size_t) ? sizeof(size_t) : both);
	memcpy(shaped, &shaped_size, sizeof(shaped_size));
	if (shaped_rest == FIRST_SET)
		shaped[kind->known] = 1;
	if (shaped_rest == LAST_SET)
		shaped[shaped_size - 1] = 0x80;
	return shaped;
}

static void expect_guard(const struct struct_kind *kind)
{
	size_t from = shaped_size < sizeof(size_t) ? sizeof(size_t) : shaped_size;

	for (size_t i = from; i < sizeof(shaped) && shaped_size <= STRUCT_MOST; i++)
		if (shaped[i] != GUARD)
			fail_msg("%s of %zu bytes: byte %zu was written", kind->name, shaped_size,
				i);
	assert_memory_equal(shaped, &shaped_size, sizeof(shaped_size));
}

/* ---- a call with each ------------------------------------------------------------------------ */

static int finish(int rc, const tern_op *op)
{
	return rc ? rc : tern_op_wait(engine, *op, WAIT);
}

static int create_group(const struct struct_kind *kind)
{
	struct tern_group_config full;
	tern_group *made = NULL;
	int rc;

	tern_group_config_init(&full);
	assert_int_equal(tern_boot_self(&full.boot), 0);
	rc = tern_group_create(shape(kind, &full), &made);
	assert_int_equal(tern_group_destroy(made), 0);
	return rc;
}

static void small_config(struct tern_moe_config *config)
{
	tern_moe_config_init(config);
	config->hidden = HIDDEN;
	config->nr_experts = 2;
	config->topk = 1;
	config->max_tokens = TOKENS;
}

static int create_moe(const struct struct_kind *kind)
{
	struct tern_moe_config full;
	tern_moe *made = NULL;
	int rc;

	small_config(&full);
	rc = tern_moe_create(group, shape(kind, &full), &made);
	assert_int_equal(tern_moe_destroy(made), 0);
	return rc;
}

static const struct tern_dispatch dispatch_args = {
	.size = sizeof(dispatch_args), .nr_tokens = TOKENS, .x = x, .topk_ids = ids};

static int end_round(int rc, const void *y)
{
	struct tern_combine combine = {.size = sizeof(combine), .y = y};

	if (rc)
		return rc;
	memset(out, 0, sizeof(out));
	assert_int_equal(tern_combine(moe, &combine, out, 0), 0);
	assert_memory_equal(out, x, sizeof(x)); /* weights are 1 */
	return 0;
}

static int dispatch_send(const struct struct_kind *kind)
{
	struct tern_received received = {.size = sizeof(received)};
	int rc = tern_dispatch_send(moe, shape(kind, &dispatch_args));

	if (!rc)
		assert_int_equal(tern_dispatch_recv(moe, 0, &received), 0);
	return end_round(rc, received.x);
}

static int dispatch(const struct struct_kind *kind)
{
	struct tern_received received = {.size = sizeof(received)};
	int rc = tern_dispatch(moe, shape(kind, &dispatch_args), &received);

	return end_round(rc, received.x);
}

static int expect_received(int rc)
{
	struct tern_received got = {0};

	if (rc)
		return rc;
	memcpy(&got, shaped, shaped_size < sizeof(got) ? shaped_size : sizeof(got));
	assert_int_equal(got.counts[0], 2);
	assert_int_equal(got.counts[1], 2);
	assert_int_equal(got.offsets[1], 2);
	if (shaped_size >= sizeof(got))
		assert_int_equal(got.nr_rows, TOKENS);
	return end_round(rc, got.x);
}

static const struct tern_received nothing_received = {.size = sizeof(nothing_received)};

static int dispatch_recv(const struct struct_kind *kind)
{
	struct tern_received received = {.size = sizeof(received)};
	int rc;

	assert_int_equal(tern_dispatch_send(moe, &dispatch_args), 0);
	rc = expect_received(tern_dispatch_recv(moe, 0, shape(kind, &nothing_received)));
	if (rc) { /* the slot goes on as if nobody had asked */
		assert_int_equal(tern_dispatch_recv(moe, 0, &received), 0);
		end_round(0, received.x);
	}
	return rc;
}

static int dispatch_received(const struct struct_kind *kind)
{
	return expect_received(tern_dispatch(moe, &dispatch_args, shape(kind, &nothing_received)));
}

static int combine(const struct struct_kind *kind, bool in_one)
{
	struct tern_received received = {.size = sizeof(received)};
	struct tern_combine full = {.size = sizeof(full)};
	int rc;

	assert_int_equal(tern_dispatch(moe, &dispatch_args, &received), 0);
	full.y = received.x;
	memset(out, 0, sizeof(out));
	rc = in_one ? tern_combine(moe, shape(kind, &full), out, 0)
		    : tern_combine_send(moe, shape(kind, &full));
	if (rc)
		return end_round(0, received.x), rc;
	if (!in_one)
		assert_int_equal(tern_combine_recv(moe, 0, out, 0), 0);
	assert_memory_equal(out, x, sizeof(x));
	return 0;
}

static int combine_send(const struct struct_kind *kind)
{
	return combine(kind, false);
}

static int combine_whole(const struct struct_kind *kind)
{
	return combine(kind, true);
}

static int create_engine(const struct struct_kind *kind)
{
	struct tern_engine_config full;
	tern_engine *made = NULL;
	int rc;

	tern_engine_config_init(&full);
	rc = tern_engine_create(group, shape(kind, &full), &made);
	assert_int_equal(tern_engine_destroy(made), 0);
	return rc;
}

static int write_bytes(const struct struct_kind *kind)
{
	const struct tern_write full = {
		.local = region, .remote = remote, .remote_offset = 128, .bytes = 64};
	tern_op op = 0;

	return finish(tern_engine_write(engine, shape(kind, &full), &op), &op);
}

static int write_pages(const struct struct_kind *kind)
{
	static const uint32_t from[] = {0, 1}, to[] = {1, 0};
	const struct tern_paged_write full = {.nr_pages = 2,
		.local = region,
		.remote = remote,
		.page_bytes = 32,
		.remote_offset = 128,
		.local_stride = 32,
		.remote_stride = 32,
		.local_pages = from,
		.remote_pages = to};
	tern_op op = 0;

	return finish(tern_engine_write_pages(engine, shape(kind, &full), &op), &op);
}

static int scatter(const struct struct_kind *kind)
{
	static const struct tern_slice slice = {.remote_offset = 128, .bytes = 64};
	const struct tern_scatter full = {.peers = peers, .local = region, .slices = &slice};
	tern_op op = 0;

	return finish(tern_engine_scatter(engine, shape(kind, &full), &op), &op);
}

static int expect_none(const struct struct_kind *kind)
{
	const struct tern_expect full = {.immediate = 7};
	tern_op op = 0;

	return finish(tern_engine_expect(engine, shape(kind, &full), &op), &op);
}

static int barrier(const struct struct_kind *kind)
{
	const struct tern_barrier full = {.immediate = 8, .peers = peers};
	tern_op op = 0;

	return finish(tern_engine_barrier(engine, shape(kind, &full), &op), &op);
}

static int send_message(const struct struct_kind *kind)
{
	const struct tern_send full = {.data = "tern", .bytes = 4};
	char data[16] = "";
	uint32_t bytes = sizeof(data), peer;
	tern_op op = 0;
	int rc = finish(tern_engine_send(engine, shape(kind, &full), &op), &op);

	if (rc)
		return rc;
	assert_int_equal(tern_engine_recv(engine, &peer, data, &bytes, WAIT), 0);
	assert_int_equal(bytes, 4);
	return 0;
}

/* ---- what is asked: whatever lies in the struct is overwritten ------------------------------- */

static void *shape_of_ones(const struct struct_kind *kind)
{
	static unsigned char ones[STRUCT_MOST];

	memset(ones, 0xff, sizeof(ones));
	shape(kind, ones);
	for (size_t i = kind->known; i < shaped_size && i < STRUCT_MOST; i++)
		shaped[i] = 0xff;
	return shaped;
}

static int expect_filled(const struct struct_kind *kind, int rc)
{
	for (size_t i = kind->known; i < shaped_size && !rc; i++)
		assert_int_equal(shaped[i], 0);
	return rc;
}

static int ask_memory(const struct struct_kind *kind)
{
	struct tern_memory *told = shape_of_ones(kind);
	int rc = expect_filled(kind, tern_moe_memory(moe, told));

	assert_true(rc || (told->window_bytes && told->window_bytes < 1u << 30));
	return rc;
}

static int ask_view(const struct struct_kind *kind)
{
	struct tern_view *told = shape_of_ones(kind);
	int rc = expect_filled(kind, tern_group_view_change(group, told));

	assert_true(rc || (told->number == 0 && told->nr_alive == 1 && told->alive[0] == 1));
	return rc;
}

static int ask_stats(const struct struct_kind *kind)
{
	struct tern_stats *told = shape_of_ones(kind);
	int rc = expect_filled(kind, tern_moe_stats(moe, told));

	assert_true(rc || told->rounds < 1000);
	return rc;
}

static int ask_report(const struct struct_kind *kind)
{
	struct tern_wait_report *told = shape_of_ones(kind);
	int rc = expect_filled(kind, tern_moe_wait_report(moe, told));

	assert_true(rc || (!told->rank && told->peer == -1));
	return rc;
}

static int ask_engine_stats(const struct struct_kind *kind)
{
	struct tern_engine_stats *told = shape_of_ones(kind);
	int rc = expect_filled(kind, tern_engine_stats(engine, told));

	assert_true(rc || told->operations < 1000);
	return rc;
}

static const struct user {
	const struct struct_kind *kind;
	int (*call)(const struct struct_kind *kind);
	bool asks;
} users[] = {
	{&kind_group_config, create_group, false},
	{&kind_moe_config, create_moe, false},
	{&kind_dispatch, dispatch_send, false},
	{&kind_dispatch, dispatch, false},
	{&kind_received, dispatch_recv, false},
	{&kind_received, dispatch_received, false},
	{&kind_combine, combine_send, false},
	{&kind_combine, combine_whole, false},
	{&kind_memory, ask_memory, true},
	{&kind_view, ask_view, true},
	{&kind_stats, ask_stats, true},
	{&kind_wait_report, ask_report, true},
	{&kind_engine_config, create_engine, false},
	{&kind_engine_stats, ask_engine_stats, true},
	{&kind_write, write_bytes, false},
	{&kind_paged_write, write_pages, false},
	{&kind_scatter, scatter, false},
	{&kind_expect, expect_none, false},
	{&kind_barrier, barrier, false},
	{&kind_send, send_message, false},
};

#define NR_USERS (sizeof(users) / sizeof(users[0]))

static int call_with(const struct user *user, size_t size, enum rest rest)
{
	int rc;

	shaped_size = size;
	shaped_rest = rest;
	rc = user->call(user->kind);
	expect_guard(user->kind);
	return rc;
}

static void taken(const struct user *user, size_t size)
{
	if (call_with(user, size, ZEROS))
		fail_msg("%s of %zu bytes: %s", user->kind->name, size, tern_last_error());
}

static void refused(const struct user *user, size_t size, enum rest rest, const char *text)
{
	int rc = call_with(user, size, rest);

	if (rc != TERN_ERR_INVALID || !strstr(tern_last_error(), user->kind->name) ||
		!strstr(tern_last_error(), text))
		fail_msg("%s of %zu bytes: %d, \"%s\", which does not say \"%s\"", user->kind->name,
			size, rc, tern_last_error(), text);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static size_t least_size(const struct struct_kind *kind)
{
	return (kind->least + sizeof(size_t) - 1) / sizeof(size_t) * sizeof(size_t);
}

static void older_headers(void **state)
{
	(void)state;
	for (size_t i = 0; i < NR_USERS; i++)
		for (size_t size = least_size(users[i].kind); size <= users[i].kind->known;
			size += sizeof(size_t))
			taken(&users[i], size);
}

static void newer_headers(void **state)
{
	(void)state;
	for (size_t i = 0; i < NR_USERS; i++) {
		size_t size = users[i].kind->known + NEWER;

		taken(&users[i], size);
		taken(&users[i], STRUCT_MOST);
		if (users[i].asks)
			continue; /* it says nothing */
		refused(&users[i], size, FIRST_SET, "is set");
		refused(&users[i], size, LAST_SET, "is set");
	}
}

static void sizes_of_no_header(void **state)
{
	(void)state;
	for (size_t i = 0; i < NR_USERS; i++) {
		const struct struct_kind *kind = users[i].kind;
		const size_t sizes[] = {0, 1, least_size(kind) - sizeof(size_t), kind->known - 1,
			kind->known + 4, STRUCT_MOST + 8, SIZE_MAX - 7};

		for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
			refused(&users[i], sizes[s], ZEROS, kind->set_by);
	}
}

/* As an older program calls it: with a room that ends where its header does. */
static void expect_init(const struct struct_kind *kind, void (*init)(void *config, size_t size),
	void (*check)(const void *config))
{
	for (size_t size = least_size(kind); size <= kind->known + NEWER; size += sizeof(size_t)) {
		shaped_size = size;
		memset(shaped, GUARD, sizeof(shaped));
		init(shaped, size);
		expect_guard(kind);
		for (size_t i = kind->known; i < size; i++)
			assert_int_equal(shaped[i], 0);
		if (size >= kind->known)
			check(shaped);
	}
}

static void init_group(void *config, size_t size)
{
	tern_group_config_init_sized(config, size);
}

static void check_group(const void *config)
{
	assert_int_equal(((const struct tern_group_config *)config)->wait_ms, 30000);
	assert_null(((const struct tern_group_config *)config)->node);
}

static void init_moe(void *config, size_t size)
{
	tern_moe_config_init_sized(config, size);
}

static void check_moe(const void *config)
{
	assert_int_equal(((const struct tern_moe_config *)config)->mode, TERN_AUTO);
	assert_int_equal(((const struct tern_moe_config *)config)->first_epoch, 1);
}

static void init_engine(void *config, size_t size)
{
	tern_engine_config_init_sized(config, size);
}

static void check_engine(const void *config)
{
	assert_string_equal(((const struct tern_engine_config *)config)->transport, "shm");
	assert_int_equal(((const struct tern_engine_config *)config)->stripe_bytes, 256 << 10);
}

static void inits(void **state)
{
	(void)state;
	expect_init(&kind_group_config, init_group, check_group);
	expect_init(&kind_moe_config, init_moe, check_moe);
	expect_init(&kind_engine_config, init_engine, check_engine);
}

/* What an older caller cannot say is the default, not 0. */
static void older_configs_get_defaults(void **state)
{
	struct tern_moe_config config, full;

	(void)state;
	small_config(&full);
	memset(&config, GUARD, sizeof(config));
	tern_moe_config_init(&config);
	shaped_size = least_size(&kind_moe_config);
	shaped_rest = ZEROS;
	assert_int_equal(struct_read(&kind_moe_config, shape(&kind_moe_config, &full), &config), 0);
	assert_memory_equal(&config, &full, sizeof(config));
}

/* The caller's own, uncopied: what every hot call does. */
static void same_header_is_not_copied(void **state)
{
	struct tern_dispatch room;

	(void)state;
	assert_ptr_equal(struct_in(&kind_dispatch, &dispatch_args, &room), &dispatch_args);
	assert_null(struct_in(&kind_dispatch, NULL, &room));
}

static int open_all(void **state)
{
	static const uint32_t myself[] = {0};
	struct tern_descriptor descriptor;
	struct tern_engine_config engine_config;
	struct tern_group_config config;
	struct tern_moe_config moe_config;
	int rc;

	(void)state;
	for (int i = 0; i < TOKENS * HIDDEN; i++)
		x[i] = (uint16_t)(0x3f80 + i);
	tern_group_config_init(&config);
	config.elastic = 1;
	tern_engine_config_init(&engine_config);
	small_config(&moe_config);
	rc = tern_boot_self(&config.boot);
	rc = rc ? rc : tern_group_create(&config, &group);
	rc = rc ? rc : tern_moe_create(group, &moe_config, &moe);
	rc = rc ? rc : tern_engine_create(group, &engine_config, &engine);
	rc = rc ? rc : tern_engine_register(engine, memory, sizeof(memory), &region);
	rc = rc ? rc : tern_region_descriptor(region, &descriptor);
	rc = rc ? rc : tern_engine_import(engine, &descriptor, &remote);
	return rc ? rc : tern_peers_create(engine, myself, &remote, 1, &peers);
}

static int close_all(void **state)
{
	(void)state;
	tern_engine_destroy(engine);
	tern_moe_destroy(moe);
	return tern_group_destroy(group);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(older_headers),
		cmocka_unit_test(newer_headers),
		cmocka_unit_test(sizes_of_no_header),
		cmocka_unit_test(inits),
		cmocka_unit_test(older_configs_get_defaults),
		cmocka_unit_test(same_header_is_not_copied),
	};

	return cmocka_run_group_tests(tests, open_all, close_all);
}
