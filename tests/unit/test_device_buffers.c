/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU's memory, written and read through the descriptors that verbs registers it by. The memory
 * is a file that this process maps without the right to read it, as a GPU's is; the driver is a
 * test's, whose descriptors are dma-bufs where there is /dev/udmabuf, else the file; the NIC is
 * this program: it maps what it is given, and moves what it is told to. */
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/device/gpu_memory.h"
#include "transport/device_memory.h"
#include "transport/verbs/verbs.h"

#define PAGES 16
#define INLINE_BYTES 64
#define NR_SLOTS 8
#define MOST_REGIONS 64

static uint64_t page;

/* ---- a GPU ----------------------------------------------------------------------------------- */

static struct gpu_memory gpu;
static uint8_t expected[PAGES * 4096]; /* what the GPU should see */

static int open_gpu(void **state)
{
	(void)state;
	page = (uint64_t)sysconf(_SC_PAGESIZE);
	assert_true(PAGES * page <= sizeof(expected));
	memset(expected, 0, sizeof(expected));
	assert_true(gpu_memory_open(&gpu, PAGES * page));
	return 0;
}

static int close_gpu(void **state)
{
	(void)state;
	gpu_memory_close(&gpu);
	return 0;
}

static bool is_gpus(uint64_t address)
{
	return address - (uintptr_t)gpu.memory < gpu.bytes;
}

/* ---- a NIC ----------------------------------------------------------------------------------- */

struct nic_region {
	struct ibv_mr mr;
	uint8_t *bytes; /* what it has mapped, or the host's memory */
	uint64_t address, nr, mapped, offset;
};

static struct {
	struct nic_region regions[MOST_REGIONS];
	uint32_t nr_regions, nr_inline, nr_writes;
	bool refuses;
} nic;

static struct nic_region *new_region(uint64_t address, uint64_t bytes)
{
	struct nic_region *region = &nic.regions[nic.nr_regions++];

	assert_true(nic.nr_regions <= MOST_REGIONS);
	*region = (struct nic_region){.address = address, .nr = bytes};
	region->mr.lkey = region->mr.rkey = nic.nr_regions;
	return region;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *base, size_t bytes, int access)
{
	struct nic_region *region = new_region((uintptr_t)base, bytes);

	(void)pd;
	(void)access;
	region->bytes = base;
	return &region->mr;
}

/* As RDMA devices' drivers take them: what is asked for lies in the buffer, and as far behind a
 * page's beginning as its address does. */
static struct ibv_mr *reg_dmabuf_mr(
	struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t address, int fd, int access)
{
	struct driver_asked asked;
	struct nic_region *region;
	uint64_t from;

	(void)pd;
	(void)access;
	gpu.driver.told(&asked);
	if (nic.refuses || offset + bytes > asked.bytes || offset % page != address % page)
		return errno = nic.refuses ? EOPNOTSUPP : EINVAL, NULL;
	region = new_region(address, bytes);
	from = asked.start + offset / page * page;
	region->offset = offset % page;
	region->mapped = region->offset + bytes;
	region->bytes =
		mmap(NULL, region->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)from);
	assert_ptr_not_equal(region->bytes, MAP_FAILED);
	region->bytes += region->offset;
	return &region->mr;
}

static int dereg_mr(struct ibv_mr *mr)
{
	struct nic_region *region = (struct nic_region *)mr;

	if (region->mapped)
		munmap(region->bytes - region->offset, region->mapped);
	region->nr = 0;
	return 0;
}

static uint8_t *at(uint32_t key, uint64_t address, uint64_t bytes)
{
	struct nic_region *region = &nic.regions[key - 1];

	assert_true(key && key <= nic.nr_regions);
	assert_true(address >= region->address && bytes <= region->nr);
	assert_true(address - region->address <= region->nr - bytes);
	return region->bytes + (address - region->address);
}

/* What is inline is read by whoever posts. */
static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	(void)qp;
	(void)bad;
	for (; wr; wr = wr->next) {
		const struct ibv_sge *sge = wr->sg_list;
		bool in_line = wr->send_flags & IBV_SEND_INLINE;

		assert_int_equal(wr->num_sge, 1);
		assert_false(in_line && is_gpus(sge->addr));
		nic.nr_writes++;
		nic.nr_inline += in_line;
		memcpy(at(wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, sge->length),
			in_line ? (const uint8_t *)(uintptr_t)sge->addr
				: at(sge->lkey, sge->addr, sge->length),
			sge->length);
	}
	return 0;
}

/* ---- verbs, and a peer that is itself -------------------------------------------------------- */

struct end {
	struct verbs *v;
	struct verbs_peer peer;
	struct ibv_context context;
	struct ibv_qp qp;
};

static void open_end(struct end *end)
{
	struct verbs *v = calloc(1, sizeof(*v));
	struct verbs_connection *connection =
		calloc(1, sizeof(*connection) + NR_SLOTS * sizeof(struct verbs_slot));

	memset(&nic, 0, sizeof(nic));
	memset(end, 0, sizeof(*end));
	end->context.ops.post_send = post_send;
	end->qp.context = &end->context;
	*connection = (struct verbs_connection){.qp = &end->qp, .nr_slots = NR_SLOTS};
	end->peer.state = VERBS_UP;
	end->peer.connections[VERBS_DATA] = connection;
	v->library.reg_mr = reg_mr;
	v->library.reg_dmabuf_mr = reg_dmabuf_mr;
	v->library.dereg_mr = dereg_mr;
	v->port.attr.max_msg_sz = 1u << 30;
	v->inline_bytes = INLINE_BYTES;
	v->depth = NR_SLOTS;
	v->settings.chain = 4;
	v->nr_peers = 1;
	v->peers = &end->peer;
	v->held_connections = calloc(1, sizeof(struct verbs_connection *));
	end->v = v;
}

static void close_end(struct end *end)
{
	free(end->peer.connections[VERBS_DATA]);
	free(end->v->held_connections);
	free(end->v);
}

static struct transport_region *registered(
	struct end *end, void *base, uint64_t bytes, struct transport_key *key)
{
	struct transport_region *region;

	assert_int_equal(verbs_reg(&end->v->base, base, bytes, &region, key), 0);
	return region;
}

/* All of one, as the engine writes it: what fits is offered as inline. */
static void write_all(struct end *end, const struct transport_region *region, const void *from,
	const struct transport_key *key)
{
	struct transport_write write = {.flags = key->bytes <= INLINE_BYTES ? WRITE_INLINE : 0,
		.region = region,
		.from = from,
		.key = key,
		.bytes = key->bytes};
	struct verbs_connection *connection = end->peer.connections[VERBS_DATA];

	assert_int_equal(verbs_write(&end->v->base, &write), 0);
	verbs_flush(end->v);
	connection->ended = connection->posted;
	end->v->nr_under_way = 0;
}

static uint32_t nr_descriptors(void)
{
	DIR *all = opendir("/proc/self/fd");
	uint32_t nr = 0;

	assert_non_null(all);
	while (readdir(all))
		nr++;
	closedir(all);
	return nr;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void gpu_is_as_expected(void)
{
	assert_memory_equal(gpu.seen, expected, gpu.bytes);
}

/* From the host to the GPU, there from one place to another, and back: at any place in a page, over
 * any number of pages, and no byte beside. */
static void move(struct end *end, uint64_t from, uint64_t to, uint64_t bytes, uint8_t value)
{
	uint8_t *host = malloc(bytes), *back = calloc(1, bytes);
	struct transport_key keys[4];
	struct transport_region *regions[4] = {registered(end, host, bytes, &keys[0]),
		registered(end, gpu.memory + from, bytes, &keys[1]),
		registered(end, gpu.memory + to, bytes, &keys[2]),
		registered(end, back, bytes, &keys[3])};

	for (uint64_t i = 0; i < bytes; i++)
		host[i] = (uint8_t)(value + i * 7);
	write_all(end, regions[0], host, &keys[1]);
	memcpy(expected + from, host, bytes);
	gpu_is_as_expected();
	write_all(end, regions[1], gpu.memory + from, &keys[2]);
	memcpy(expected + to, host, bytes);
	gpu_is_as_expected();
	write_all(end, regions[2], gpu.memory + to, &keys[3]);
	assert_memory_equal(back, host, bytes);
	for (int i = 0; i < 4; i++)
		verbs_dereg(&end->v->base, regions[i]);
	nic.nr_regions = 0;
	free(host);
	free(back);
}

static void bytes_at_their_places(void **state)
{
	const uint64_t offsets[] = {0, 16, 63, page - 16, page - 1, page, page + 904},
		       sizes[] = {1, 16, INLINE_BYTES, INLINE_BYTES + 1, page, page + 16, 2 * page};
	uint32_t before = nr_descriptors();
	struct end end;

	(void)state;
	open_end(&end);
	for (uint32_t i = 0; i < 49; i++) {
		uint64_t from = offsets[i / 7], to = 8 * page + offsets[(i + i / 7) % 7];

		move(&end, from, to, sizes[i % 7], (uint8_t)(i + 1));
		assert_int_equal(nr_descriptors(), before);
	}
	assert_int_equal(nic.nr_inline, 3 * 7); /* from the host, and no others */
	close_end(&end);
}

/* Neighbours in one page, each by a descriptor of its own, which is gone when it is registered. */
static void regions_share_pages(void **state)
{
	struct transport_region *regions[16];
	struct transport_key keys[16];
	uint32_t before = nr_descriptors();
	struct end end;

	(void)state;
	open_end(&end);
	for (uint32_t i = 0; i < 16; i++) {
		regions[i] = registered(&end, gpu.memory + i * page / 4, page / 4, &keys[i]);
		memset(gpu.seen + i * page / 4, (int)i + 1, page / 4);
	}
	assert_int_equal(nr_descriptors(), before);
	for (uint32_t i = 0; i + 1 < 16; i += 2) /* the even ones over the odd ones */
		write_all(&end, regions[i], gpu.memory + i * page / 4, &keys[i + 1]);
	for (uint32_t i = 0; i < 16; i++)
		memset(expected + i * page / 4, (int)(i / 2 * 2) + 1, page / 4);
	gpu_is_as_expected();
	for (uint32_t i = 0; i < 16; i++)
		verbs_dereg(&end.v->base, regions[i]);
	close_end(&end);
}

/* What is refused leaves no descriptor behind, and no region. */
static void refusals_leave_nothing(void **state)
{
	struct driver_memory known = gpu.known;
	uint32_t before = nr_descriptors();
	struct transport_region *region;
	struct transport_key key;
	struct end end;

	(void)state;
	open_end(&end);
	nic.refuses = true;
	assert_int_equal(
		verbs_reg(&end.v->base, gpu.memory + 5, 100, &region, &key), TERN_ERR_SYSTEM);
	known.error = 801;
	gpu.driver.set(&known);
	assert_int_equal(
		verbs_reg(&end.v->base, gpu.memory + 5, 100, &region, &key), TERN_ERR_UNSUPPORTED);
	known.error = 0;
	gpu.driver.set(&known);
	assert_int_equal(nr_descriptors(), before);
	assert_null(end.v->regions);
	close_end(&end);
}

/* A small write from there is none that is inline, so that its bytes have to be registered. */
static void outside_its_region(void **state)
{
	struct transport_key key;
	struct transport_region *region;
	struct transport_write write;
	struct end end;

	(void)state;
	open_end(&end);
	region = registered(&end, gpu.memory + page, 128, &key);
	write = (struct transport_write){.flags = WRITE_INLINE,
		.region = region,
		.from = gpu.memory + page + 100,
		.key = &key,
		.bytes = 32};
	assert_int_equal(verbs_write(&end.v->base, &write), TERN_ERR_INVALID);
	assert_non_null(strstr(tern_last_error(), "outside its region"));
	assert_int_equal(nic.nr_writes, 0);
	verbs_dereg(&end.v->base, region);
	close_end(&end);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(bytes_at_their_places, open_gpu, close_gpu),
		cmocka_unit_test_setup_teardown(regions_share_pages, open_gpu, close_gpu),
		cmocka_unit_test_setup_teardown(refusals_leave_nothing, open_gpu, close_gpu),
		cmocka_unit_test_setup_teardown(outside_its_region, open_gpu, close_gpu),
	};

	printf("# descriptors are %s\n",
		access("/dev/udmabuf", R_OK | W_OK) ? "of the file: no /dev/udmabuf" : "dma-bufs");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
