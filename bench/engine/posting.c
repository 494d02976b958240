/* SPDX-License-Identifier: Apache-2.0 */
/* tern-posting: what the engine itself costs, over a transport that does nothing: writes end as
 * soon as they are polled for. One thread is caller and proxy in turn. Prints, of ROUNDS rounds,
 * the 10th, 50th and 90th percentile in nanoseconds. */
#include "testkit/measure.h"
#include "base/scheduler.h"
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 2000
#define WRITES 512
#define PEERS 64
#define PAGES 256
#define REGION_BYTES (1u << 20)

/* ---- the transport --------------------------------------------------------------------------- */

static struct nothing {
	struct transport base;
	uint64_t cookies[4096];
	uint32_t peers[4096], first, nr;
	uint64_t nr_posted;
} nothing;

static int nothing_open(const struct transport_options *options, struct transport **transport,
	struct transport_info *info)
{
	*info = (struct transport_info){.name = "nothing",
		.caps = TRANSPORT_ORDERED | TRANSPORT_SEES_DEATH,
		.depth = 4096,
		.inline_bytes = 8,
		.message_bytes = options->message_bytes,
		.write_bytes = 1u << 30};
	*transport = &nothing.base;
	return 0;
}

static void nothing_close(struct transport *transport)
{
	(void)transport;
}

static int nothing_address(struct transport *transport, void *address, uint32_t *bytes)
{
	(void)transport;
	memset(address, 0, *bytes = 8);
	return 0;
}

static int nothing_connect(
	struct transport *transport, uint32_t peer, const void *address, uint32_t bytes)
{
	(void)transport, (void)peer, (void)address, (void)bytes;
	return 0;
}

static int nothing_disconnect(struct transport *transport, uint32_t peer)
{
	(void)transport, (void)peer;
	return 0;
}

static int nothing_reg(struct transport *transport, void *base, uint64_t bytes,
	struct transport_region **region, struct transport_key *key)
{
	(void)base;
	*region = (struct transport_region *)transport;
	*key = (struct transport_key){.bytes = bytes};
	return 0;
}

static void nothing_dereg(struct transport *transport, struct transport_region *region)
{
	(void)transport, (void)region;
}

static int nothing_write(struct transport *transport, const struct transport_write *write)
{
	uint32_t last = (nothing.first + nothing.nr) % 4096;

	(void)transport;
	nothing.nr_posted++;
	if (!(write->flags & WRITE_SIGNALLED))
		return 0;
	nothing.cookies[last] = write->cookie;
	nothing.peers[last] = write->peer;
	nothing.nr++;
	return 0;
}

static int nothing_send(
	struct transport *transport, uint32_t peer, const void *data, uint32_t bytes)
{
	(void)transport, (void)peer, (void)data, (void)bytes;
	return 0;
}

static int nothing_poll(struct transport *transport, struct transport_event *events, int max)
{
	int nr = 0;

	(void)transport;
	for (; nr < max && nothing.nr; nr++, nothing.nr--) {
		events[nr] = (struct transport_event){.kind = EVENT_WRITTEN,
			.peer = nothing.peers[nothing.first],
			.cookie = nothing.cookies[nothing.first]};
		nothing.first = (nothing.first + 1) % 4096;
	}
	return nr;
}

static const struct transport_ops transport_nothing = {"nothing", nothing_open, nothing_close,
	nothing_address, nothing_connect, nothing_disconnect, nothing_reg, nothing_dereg,
	nothing_write, nothing_send, nothing_poll};

/* ---- the engine ------------------------------------------------------------------------------ */

struct posting {
	tern_engine *engine;
	tern_region *region;
	tern_remote *remotes[PEERS];
	tern_peers *peers;
	uint64_t time_ns;
	struct tern_slice slices[PEERS];
	uint32_t pages[PAGES];
};

static void must(int rc, const char *what)
{
	if (!rc)
		return;
	fprintf(stderr, "tern-posting: %s: %s\n", what, tern_last_error());
	exit(1);
}

static uint64_t time_now(void *ctx)
{
	return ((struct posting *)ctx)->time_ns;
}

static void idle(void *ctx, uint64_t until_ns)
{
	struct posting *p = ctx;

	(void)until_ns;
	engine_step(p->engine, p->time_ns);
}

static void open_engine(struct posting *p, struct scheduler *scheduler)
{
	static uint8_t memory[REGION_BYTES];
	static struct engine_address all[PEERS];
	struct tern_engine_config config;
	struct engine_setup setup = {.nr_peers = PEERS,
		.nr_networks = 1,
		.networks = {{.ops = &transport_nothing, .nr_nics = 1}},
		.scheduler = scheduler};
	struct tern_descriptor descriptor;
	uint32_t ranks[PEERS];

	nothing.base.ops = &transport_nothing;
	tern_engine_config_init(&config);
	must(engine_open(&config, &setup, &p->engine), "opening");
	for (uint32_t i = 0; i < PEERS; i++)
		must(engine_address(p->engine, &all[i]), "addresses");
	must(engine_connect(p->engine, all), "connecting");
	must(tern_engine_register(p->engine, memory, sizeof(memory), &p->region), "registering");
	must(tern_region_descriptor(p->region, &descriptor), "describing");
	for (uint32_t i = 0; i < PEERS; i++) {
		ranks[i] = descriptor.rank = i;
		must(tern_engine_import(p->engine, &descriptor, &p->remotes[i]), "importing");
	}
	must(tern_peers_create(p->engine, ranks, p->remotes, PEERS, &p->peers), "listing");
}

/* What the proxy takes until nr_writes are posted and reported, in nanoseconds. */
static double drain(struct posting *p, uint64_t nr_writes)
{
	uint64_t until = nothing.nr_posted + nr_writes;
	double start = now_us();

	do {
		p->time_ns += 1000;
		engine_step(p->engine, p->time_ns);
	} while (nothing.nr_posted < until || nothing.nr);
	return (now_us() - start) * 1e3;
}

/* ---- what is measured ------------------------------------------------------------------------ */

static void writes(struct posting *p, double *caller, double *proxy)
{
	struct tern_write write = {.size = sizeof(write),
		.local = p->region,
		.remote = p->remotes[1],
		.peer = 1,
		.bytes = 4096};
	double start = now_us();

	for (uint32_t i = 0; i < WRITES; i++)
		must(tern_engine_write(p->engine, &write, NULL), "writing");
	*caller = (now_us() - start) * 1e3 / WRITES;
	*proxy = drain(p, WRITES) / WRITES;
}

static void scatter(struct posting *p, double *caller, double *proxy)
{
	struct tern_scatter s = {.size = sizeof(s),
		.flags = TERN_IMMEDIATE,
		.peers = p->peers,
		.local = p->region,
		.slices = p->slices};
	double start;

	for (uint32_t i = 0; i < PEERS; i++)
		p->slices[i] = (struct tern_slice){
			.local_offset = 4096 * i, .bytes = 4096, .immediate = 7};
	start = now_us();
	must(tern_engine_scatter(p->engine, &s, NULL), "scattering");
	*caller = (now_us() - start) * 1e3 / PEERS;
	*proxy = drain(p, PEERS) / PEERS;
}

static void pages(struct posting *p, double *caller, double *proxy)
{
	struct tern_paged_write w = {.size = sizeof(w),
		.local = p->region,
		.remote = p->remotes[1],
		.peer = 1,
		.nr_pages = PAGES,
		.page_bytes = 4096,
		.local_stride = 4096,
		.remote_stride = 4096,
		.local_pages = p->pages,
		.remote_pages = p->pages};
	double start;

	for (uint32_t i = 0; i < PAGES; i++)
		p->pages[i] = i;
	start = now_us();
	must(tern_engine_write_pages(p->engine, &w, NULL), "writing pages");
	*caller = (now_us() - start) * 1e3 / PAGES;
	*proxy = drain(p, PAGES) / PAGES;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void print(const char *what, double *ns)
{
	qsort(ns, ROUNDS, sizeof(*ns), ascending);
	printf("%-46s %7.1f %7.1f %7.1f\n", what, percentile(ns, ROUNDS, 0.1),
		percentile(ns, ROUNDS, 0.5), percentile(ns, ROUNDS, 0.9));
}

static void measure(
	struct posting *p, const char *what, void (*one)(struct posting *, double *, double *))
{
	static double caller[ROUNDS], proxy[ROUNDS];
	char line[64];

	for (int i = -ROUNDS / 10; i < ROUNDS; i++)
		one(p, &caller[i < 0 ? 0 : i], &proxy[i < 0 ? 0 : i]);
	snprintf(line, sizeof(line), "%s, caller", what);
	print(line, caller);
	snprintf(line, sizeof(line), "%s, proxy", what);
	print(line, proxy);
}

int main(void)
{
	static struct posting p = {.time_ns = 1000000};
	struct scheduler scheduler = {.ctx = &p, .now = time_now, .idle = idle};

	open_engine(&p, &scheduler);
	printf("%-46s %7s %7s %7s\n", "ns", "p10", "p50", "p90");
	measure(&p, "a write without handle", writes);
	measure(&p, "a slice of a scatter to 64 with immediates", scatter);
	measure(&p, "a page of 256, few of them signalled", pages);
	must(tern_engine_destroy(p.engine), "destroying");
	return 0;
}
