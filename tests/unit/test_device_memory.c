/* SPDX-License-Identifier: Apache-2.0 */
/* How verbs registers a GPU's memory: what the driver is asked for and what the RDMA device is
 * given, whose descriptor it is and how long it lives, and each refusal. Driver and device are this
 * test's; neither has been seen by a NIC. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/device/gpu_memory.h"
#include "transport/device_memory.h"
#include "transport/verbs/verbs.h"

#define PAGE ((uint64_t)sysconf(_SC_PAGESIZE))

/* ---- a device -------------------------------------------------------------------------------- */

static struct {
	uint32_t nr_host, nr_device, nr_gone;
	uint64_t offset, bytes, address;
	int fd;
	bool fd_open; /* when it was given */
	bool refuses;
} device;

static struct ibv_mr mr = {.rkey = 77};

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *base, size_t bytes, int access)
{
	(void)pd;
	(void)base;
	(void)bytes;
	(void)access;
	device.nr_host++;
	return &mr;
}

static struct ibv_mr *reg_dmabuf_mr(
	struct ibv_pd *pd, uint64_t offset, size_t bytes, uint64_t address, int fd, int access)
{
	(void)pd;
	(void)access;
	device.nr_device++;
	device.offset = offset;
	device.bytes = bytes;
	device.address = address;
	device.fd = fd;
	device.fd_open = is_open(fd);
	errno = EOPNOTSUPP;
	return device.refuses ? NULL : &mr;
}

static int dereg_mr(struct ibv_mr *region)
{
	assert_ptr_equal(region, &mr);
	device.nr_gone++;
	return 0;
}

static struct verbs *open_verbs(bool knows_buffers)
{
	struct verbs *v = calloc(1, sizeof(*v));

	memset(&device, 0, sizeof(device));
	v->library.reg_mr = reg_mr;
	v->library.reg_dmabuf_mr = knows_buffers ? reg_dmabuf_mr : NULL;
	v->library.dereg_mr = dereg_mr;
	snprintf(v->port.device, sizeof(v->port.device), "mlx5_9");
	return v;
}

/* ---- a driver -------------------------------------------------------------------------------- */

static struct gpu_driver driver;

static void load_driver(const char *which)
{
	assert_true(gpu_driver_open(&driver, which));
}

static void unload_driver(void)
{
	gpu_driver_close(&driver);
	assert_null(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)); /* who asked has not kept it */
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void register_and_give_back(struct verbs *v, void *base, uint64_t bytes)
{
	struct transport_region *region;
	struct transport_key key;

	assert_int_equal(verbs_reg(&v->base, base, bytes, &region, &key), 0);
	assert_int_equal(key.address, (uintptr_t)base);
	assert_int_equal(key.bytes, bytes);
	assert_int_equal(key.key, 77);
	assert_int_equal(region->on_device, device.nr_device);
	verbs_dereg(&v->base, region);
	assert_int_equal(device.nr_gone, 1);
}

static void expect_refusal(struct verbs *v, void *base, int error, const char *text)
{
	struct transport_region *region;
	struct transport_key key;
	struct driver_asked asked;

	assert_int_equal(verbs_reg(&v->base, base, 100, &region, &key), error);
	assert_non_null(strstr(tern_last_error(), text));
	assert_null(v->regions);
	driver.told(&asked);
	assert_true(!asked.nr || !asked.fd || !is_open(asked.fd));
	assert_int_equal(device.nr_host, 0);
}

/* CUDA is not loaded for it. */
static void without_a_driver(void **state)
{
	struct verbs *v = open_verbs(true);
	uint8_t memory[64];
	int ordinal;

	(void)state;
	assert_false(device_memory_is(memory, &ordinal));
	register_and_give_back(v, memory, sizeof(memory));
	assert_int_equal(device.nr_host, 1);
	free(v);
}

/* At any place in a page and over any number of them: whole pages of the driver, and what was asked
 * for at its place in these. */
static void whole_pages(void **state)
{
	static const uint64_t offsets[] = {0, 16, 128, 4080, 4096, 5000},
			      sizes[] = {16, 4096, 4112};
	uint64_t base = 1u << 30;
	struct driver_asked asked;

	(void)state;
	load_driver("new");
	for (int i = 0; i < 18; i++) {
		uint64_t from = base + offsets[i / 3], bytes = sizes[i % 3], end = from + bytes;
		struct verbs *v = open_verbs(true);

		driver.set(&(struct driver_memory){.base = base, .bytes = 1 << 20, .ordinal = 3});
		register_and_give_back(v, (void *)(uintptr_t)from, bytes);
		driver.told(&asked);
		assert_int_equal(asked.nr, 1);
		assert_int_equal(asked.base, from / PAGE * PAGE);
		assert_int_equal(asked.base + asked.bytes, (end + PAGE - 1) / PAGE * PAGE);
		assert_int_equal(device.offset, from - asked.base);
		assert_int_equal(device.bytes, bytes);
		assert_int_equal(device.address, from);
		assert_true(device.fd_open && device.fd == asked.fd);
		assert_false(is_open(device.fd)); /* the region holds the buffer */
		free(v);
	}
	unload_driver();
}

static void whose_memory(void **state)
{
	struct verbs *v = open_verbs(true);
	uint64_t base = 1u << 30;
	int ordinal;

	(void)state;
	load_driver("new");
	driver.set(&(struct driver_memory){.base = base, .bytes = 4096, .ordinal = 3});
	assert_true(device_memory_is((void *)(uintptr_t)base, &ordinal));
	assert_int_equal(ordinal, 3);
	assert_false(device_memory_is((void *)(uintptr_t)(base + 4096), &ordinal));
	driver.set(&(struct driver_memory){.base = base, .bytes = 4096, .pinned = true});
	assert_false(device_memory_is((void *)(uintptr_t)base, &ordinal));
	register_and_give_back(v, (void *)(uintptr_t)base, 100);
	assert_int_equal(device.nr_host, 1);
	unload_driver();
	free(v);
}

static void refusals(void **state)
{
	struct driver_memory known = {.base = 1u << 30, .bytes = 4096};
	void *base = (void *)(uintptr_t)known.base;
	struct verbs *v = open_verbs(true);

	(void)state;
	load_driver("new");
	driver.set(&known);
	device.refuses = true;
	expect_refusal(v, base, TERN_ERR_SYSTEM, "100 bytes of a GPU's memory on mlx5_9");
	assert_int_equal(device.nr_device, 1);
	known.error = 801; /* CUDA_ERROR_NOT_SUPPORTED */
	driver.set(&known);
	expect_refusal(v, base, TERN_ERR_UNSUPPORTED,
		"verbs: the CUDA driver makes no dma-buf of a GPU's memory (error 801)");
	v->library.reg_dmabuf_mr = NULL;
	expect_refusal(v, base, TERN_ERR_UNSUPPORTED, "it has no ibv_reg_dmabuf_mr");
	unload_driver();
	free(v);
}

static void driver_without_buffers(void **state)
{
	struct verbs *v = open_verbs(true);

	(void)state;
	load_driver("old");
	driver.set(&(struct driver_memory){.base = 1u << 30, .bytes = 4096});
	expect_refusal(v, (void *)(uintptr_t)(1u << 30), TERN_ERR_UNSUPPORTED,
		"verbs: the CUDA driver knows no dma-buf");
	assert_int_equal(device.nr_device, 0);
	unload_driver();
	free(v);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_a_driver),
		cmocka_unit_test(whole_pages),
		cmocka_unit_test(whose_memory),
		cmocka_unit_test(refusals),
		cmocka_unit_test(driver_without_buffers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
