/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/doctor_gpus.h"
#include "cli/near.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "gpu/host/ops.h"
#include "tern.h"
#include "transport/presence.h"

/* ---- the driver's library, if there is one --------------------------------------------------- */

struct cuda_library {
	int (*init)(unsigned int);
	int (*count)(int *);
	int (*name)(char *, int, int);
	int (*attribute)(int *, int, int);
	int (*peer)(int *, int, int);
	int (*bus)(char *, int, int);
};

/* CU_DEVICE_ATTRIBUTE_... */
#define CUDA_FLUSH_OPTIONS 117 /* GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS; 1: by the host */
#define CUDA_ORDERING 118      /* GPU_DIRECT_RDMA_WRITES_ORDERING */
#define CUDA_DMA_BUF 124       /* DMA_BUF_SUPPORTED */
#define ORDERED_FOR_NOBODY 0   /* CU_GPU_DIRECT_RDMA_WRITES_ORDERING_... */
#define ORDERED_FOR_OWNER 100
#define ORDERED_FOR_ALL 200

static bool load_cuda(struct cuda_library *l)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	static const char *const names[] = {"cuInit", "cuDeviceGetCount", "cuDeviceGetName",
		"cuDeviceGetAttribute", "cuDeviceCanAccessPeer", "cuDeviceGetPCIBusId"};
	void **functions[] = {(void **)&l->init, (void **)&l->count, (void **)&l->name,
		(void **)&l->attribute, (void **)&l->peer, (void **)&l->bus};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		void *symbol = library ? dlsym(library, names[i]) : NULL;

		if (!symbol)
			return false;
		memcpy(functions[i], &symbol, sizeof(symbol));
	}
	return true;
}

/* ---- what networks can do with its memory ---------------------------------------------------- */

/* As an exchange decides: src/gpu/host/internode_rows.c. */
static void show_rdma(const struct cuda_library *l, int device)
{
	int dma_buf = 0, order = -1, flush = 0;
	bool ordered, seen;

	if (l->attribute(&dma_buf, CUDA_DMA_BUF, device))
		dma_buf = 0;
	if (l->attribute(&order, CUDA_ORDERING, device))
		order = -1;
	if (l->attribute(&flush, CUDA_FLUSH_OPTIONS, device))
		flush = 0;
	ordered = order == ORDERED_FOR_OWNER || order == ORDERED_FOR_ALL;
	seen = ordered || (order == ORDERED_FOR_NOBODY && flush & 1);
	printf("  its memory           dma-buf: %s; what a network writes is %s; so rows between "
	       "nodes lie %s\n",
		dma_buf ? "yes" : "no",
		order == ORDERED_FOR_ALL      ? "ordered for all GPUs"
		: ordered                     ? "ordered for this GPU"
		: seen                        ? "not ordered, and flushed"
		: order == ORDERED_FOR_NOBODY ? "not ordered, and cannot be flushed"
					      : "in an order that the driver does not tell",
		!seen     ? "in pinned memory"
		: dma_buf ? "there, where the network takes it"
			  : "in pinned memory with verbs");
}

/* ---- which port is near ---------------------------------------------------------------------- */

#define MOST_PORTS 64

struct ports {
	char name[MOST_PORTS][80];
	struct pci_place place[MOST_PORTS];
	int nr;
};

static void note_port(void *ctx, const struct verbs_facts *facts)
{
	struct ports *ports = ctx;
	char link[128];

	if (ports->nr == MOST_PORTS || facts->reason[0])
		return;
	snprintf(link, sizeof(link), "/sys/class/infiniband/%.64s/device", facts->device);
	if (near_find(link, &ports->place[ports->nr]))
		return;
	snprintf(ports->name[ports->nr++], sizeof(ports->name[0]), "%.64s:%u", facts->device,
		facts->port);
}

/* All that are as near as the nearest. */
static void show_ports_near(const struct ports *ports, const struct pci_place *gpu)
{
	enum nearness best = NEAR_UNKNOWN;
	const char *between = "";

	for (int i = 0; i < ports->nr; i++) {
		enum nearness how = near_each_other(gpu, &ports->place[i]);

		best = how < best ? how : best;
	}
	printf("  nearest RDMA port    ");
	for (int i = 0; i < ports->nr; i++) {
		if (near_each_other(gpu, &ports->place[i]) != best)
			continue;
		printf("%s%s", between, ports->name[i]);
		between = " ";
	}
	printf("%s%s\n", ports->nr ? ", " : "none that can be used",
		ports->nr ? near_text(best) : "");
}

/* ---- a GPU ----------------------------------------------------------------------------------- */

static void show_gpu(const struct cuda_library *l, int device, int nr, const struct ports *ports)
{
	char name[128] = "?", bus[32] = "", link[96];
	struct pci_place place;
	int can;

	l->name(name, sizeof(name), device);
	if (l->bus(bus, sizeof(bus), device))
		bus[0] = 0;
	for (char *c = bus; *c; c++)
		*c = (char)tolower((unsigned char)*c); /* as the kernel has it */
	printf("GPU %-18d %s, PCI %s; reaches GPUs:", device, name, bus[0] ? bus : "?");
	for (int other = 0; other < nr; other++)
		if (other != device && !l->peer(&can, device, other) && can)
			printf(" %d", other);
	printf("\n");
	show_rdma(l, device);
	snprintf(link, sizeof(link), "/sys/bus/pci/devices/%s", bus);
	if (bus[0] && !near_find(link, &place))
		show_ports_near(ports, &place);
}

/* Does this build have code for it? */
static void show_kernels(void)
{
	const struct device_ops *ops = device_ops_load();
	char text[256];
	int nr = 0;

	if (!ops || ops->nr_devices(&nr)) {
		printf("kernels                none: %s\n",
			ops ? ops->error_text() : tern_last_error());
		return;
	}
	for (int i = 0; i < nr; i++)
		printf("kernels on GPU %-7d %s\n", i,
			ops->use(i) || ops->describe(text, sizeof(text)) ? ops->error_text()
									 : text);
}

void doctor_gpus(void)
{
	struct ports ports = {.nr = 0};
	struct cuda_library l;
	int nr = 0, rc;

	if (!load_cuda(&l)) {
		printf("GPUs                   none: the CUDA driver (libcuda.so.1) is not "
		       "installed\n");
	} else {
		rc = l.init(0);
		if (rc || (rc = l.count(&nr)) || !nr)
			printf("GPUs                   none: the CUDA driver says %d\n", rc);
		verbs_list(note_port, &ports);
		for (int i = 0; i < nr; i++)
			show_gpu(&l, i, nr, &ports);
	}
	show_kernels();
}
