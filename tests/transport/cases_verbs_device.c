/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU's memory through real queue pairs. Soft-RoCE takes no dma-buf, so a shim stands in
 * ibv_reg_dmabuf_mr's place, which maps the descriptor and registers what it has mapped. This
 * process has no right to read that memory where the transport knows it. */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/device/gpu_memory.h"
#include "tests/transport/cases_verbs.h"

#define PAGES 16
#define MOST_SHIMS 4

static struct gpu_memory gpu;
static struct verbs_library real;
static struct shim {
	void *mapped;
	uint64_t bytes;
} shims[MOST_SHIMS];
static uint32_t nr_shims;

static struct ibv_mr *reg_dmabuf_mr(
	struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t address, int fd, int access)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), behind = offset % page;
	struct shim *shim = &shims[nr_shims];
	struct driver_asked asked;

	gpu.driver.told(&asked);
	if (nr_shims == MOST_SHIMS || offset + bytes > asked.bytes || behind != address % page)
		return errno = EINVAL, NULL;
	shim->bytes = behind + bytes;
	shim->mapped = mmap(NULL, shim->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		(off_t)(asked.start + offset - behind));
	if (shim->mapped == MAP_FAILED)
		return NULL;
	nr_shims++;
	return real.reg_mr_iova2(
		pd, (uint8_t *)shim->mapped + behind, bytes, address, (unsigned int)access);
}

struct end {
	struct transport *transport;
	struct transport_region *region;
	struct transport_key key;
	uint8_t *at;
};

static void open_end(struct world *w, uint32_t who, uint8_t *at, uint64_t bytes, struct end *end)
{
	*end = (struct end){.transport = w->peers[who].transport, .at = at};
	real = inside(w, who)->library;
	inside(w, who)->library.reg_dmabuf_mr = reg_dmabuf_mr;
	expect_ok(end->transport->ops->reg(end->transport, at, bytes, &end->region, &end->key),
		"registering a GPU's memory");
}

/* As the engine writes: what fits is offered as inline. */
static void write_one(
	struct world *w, struct end *ends, uint32_t from, uint64_t offset, uint64_t bytes)
{
	bool fits = bytes <= w->peers[from].info.inline_bytes;
	struct transport_write write = {.peer = !from,
		.flags = WRITE_IMMEDIATE | WRITE_SIGNALLED | (fits ? WRITE_INLINE : 0),
		.immediate = (uint32_t)bytes,
		.cookie = bytes,
		.region = ends[from].region,
		.from = ends[from].at + offset,
		.key = &ends[!from].key,
		.offset = offset,
		.bytes = bytes};
	uint8_t *source = gpu.seen + (ends[from].at - gpu.memory) + offset,
		*target = gpu.seen + (ends[!from].at - gpu.memory);

	poison(gpu.seen, gpu.bytes);
	fill(source, bytes, bytes);
	post(w, from, &write);
	expect(take_event(w, !from, EVENT_IMMEDIATE).immediate == bytes, "another immediate");
	expect(take_event(w, from, EVENT_WRITTEN).cookie == bytes, "another cookie");
	expect_only(target, ends[!from].key.bytes, offset, bytes, bytes, "a GPU's memory");
}

void run_device_memory(const struct network *n)
{
	static const uint64_t sizes[] = {1, 8, 64, 500, 4096, 5000};
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), bytes = 4 * page;
	struct end ends[2];
	struct world w;

	world_open(&w, n, 2, 8192);
	expect(gpu_memory_open(&gpu, PAGES * page), "no memory like a GPU's");
	open_end(&w, 0, gpu.memory + 100, bytes, &ends[0]);
	open_end(&w, 1, gpu.memory + 8 * page + 904, bytes, &ends[1]);
	for (uint32_t i = 0; i < 24; i++)
		write_one(&w, ends, i % 2, i / 12 * (page - 3) + i, sizes[i / 2 % 6]);
	for (uint32_t i = 0; i < 2; i++)
		ends[i].transport->ops->dereg(ends[i].transport, ends[i].region);
	world_close(&w);
	for (uint32_t i = 0; i < nr_shims; i++)
		munmap(shims[i].mapped, shims[i].bytes);
	gpu_memory_close(&gpu);
}
