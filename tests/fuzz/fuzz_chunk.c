/* SPDX-License-Identifier: Apache-2.0 */
/* A source that sends its gateway any chunks. The gateway takes them or calls them broken; it
 * stores rows, headers and the dispatch word where those of this source belong, on the ranks of its
 * node, and nowhere else. Ranks 0 and 3 are elsewhere, the gateway is rank 1, rank 2 is beside it.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/bytes.h"
#include "path/chunk.h"
#include "path/inside.h"
#include "path/relay.h"

#define NR_RANKS 4
#define GATEWAY 1
#define BESIDE 2
#define SOURCE 3 /* its second channel */
#define NR_EXPERTS 7

static const int node_of[NR_RANKS] = {0, 1, 1, 2};

struct gateway {
	tern_group group;
	tern_moe moe;
	struct engine_path path;
	struct window windows[NR_RANKS];
	struct window *mapped[NR_RANKS];
};

static void draw_config(struct bytes *b, struct tern_moe_config *c)
{
	uint8_t kind = take_byte(b);

	tern_moe_config_init(c);
	c->mode = TERN_HIGH_THROUGHPUT;
	c->layout = (enum tern_layout)(1 + kind % 3);
	c->reduce = c->layout == TERN_BY_SOURCE || kind & 8 ? TERN_REDUCE_EXPERT : TERN_REDUCE_HOME;
	c->hidden = 16;
	if (kind & 16) {
		c->dispatch_dtype = TERN_FP8_E4M3;
		c->scale = TERN_SCALE_FP32;
	}
	c->nr_experts = NR_EXPERTS;
	c->topk = take_from(b, 1, 4);
	c->max_tokens = take_from(b, 1, 6);
	c->nr_slots = take_from(b, 1, 2);
	c->capacity = kind & 32 ? take_from(b, 1, 9) : 0;
}

static void gateway_open(struct gateway *g, struct bytes *b)
{
	struct channel_shape channels = {.nr_chunks = 2, .chunk_bytes = take_from(b, 1, 700)};
	tern_moe *moe = &g->moe;

	memset(g, 0, sizeof(*g));
	draw_config(b, &moe->config);
	moe->group = &g->group;
	moe->engine = &g->path;
	moe->windows = g->mapped;
	moe->nr_ranks = NR_RANKS;
	moe->rank = GATEWAY;
	MUST(!placement_init(&moe->placement, &moe->config.placement, NR_EXPERTS, NR_RANKS));
	MUST(!topology_init(&moe->topology, node_of, NR_RANKS));
	channels.nr_channels = topology_most_channels(&moe->topology);
	layout_init(&moe->layout, &moe->config, NR_RANKS, NR_EXPERTS, moe->placement.max_local,
		&channels);
	for (int r = GATEWAY; r <= BESIDE; r++) {
		g->windows[r].base =
			aligned_alloc(4096, moe->layout.window_bytes); /* exact, so
									  that
									  AddressSanitizer
									  sees its end
									*/
		MUST(g->windows[r].base);
		memset(g->windows[r].base, 0, moe->layout.window_bytes);
		g->mapped[r] = &g->windows[r];
	}
	MUST(!relay_open(moe));
}

static void gateway_close(struct gateway *g)
{
	relay_close(&g->moe, 0);
	topology_free(&g->moe.topology);
	placement_free(&g->moe.placement);
	for (int r = GATEWAY; r <= BESIDE; r++)
		free(g->windows[r].base);
}

/* Mostly right: what is drawn may be out of its bounds by a little. */
static void write_row(struct bytes *b, const struct layout *l, struct chunk_writer *w)
{
	uint32_t nr_places = take_from(b, 1, l->topk < 2 ? 1 : 2);

	chunk_row_begin(w);
	for (uint32_t i = 0; i < nr_places; i++) {
		union header_copy copy = {{0}};

		copy.header.token = take_from(b, 0, 6);
		copy.header.home_row = take_from(b, 0, 26);
		copy.header.nr_routes = take_from(b, 1, nr_places > 1 ? 1 : l->topk);
		for (uint32_t k = 0; k < copy.header.nr_routes; k++)
			copy.header.routes[k] =
				(struct route){.position = take_from(b, 0, (uint32_t)l->positions),
					.expert = (uint16_t)take_from(b, 0, 2),
					.k = (uint16_t)take_from(b, 0, l->topk)};
		chunk_row_place(
			w, GATEWAY + i, take_from(b, 0, 7) % (l->share_tokens + 1), &copy.header);
	}
	memset(chunk_row_end(w, l), 0, l->payload_bytes + l->scales_bytes);
}

static void write_chunk(struct bytes *b, const struct layout *l, uint8_t *chunk)
{
	struct chunk_writer w;

	chunk_begin(&w, chunk);
	while (w.at + chunk_row_bytes(l, 2, l->topk) <= l->chunk_bytes && take_byte(b) & 3)
		write_row(b, l, &w);
	chunk_end(&w, take_byte(b) % 16 == 15, 1, take_byte(b) & 1 ? take_from(b, 1, 3) : 0);
}

static void spoil(struct bytes *b, const struct layout *l, uint8_t *chunk)
{
	uint32_t nr = take_byte(b) % 6;

	for (uint32_t i = 0; i < nr; i++)
		chunk[(take_byte(b) * 256u + take_byte(b)) % l->chunk_bytes] = take_byte(b);
}

static void expect_untouched(const struct gateway *g, int rank, uint64_t from, uint64_t bytes)
{
	const uint8_t *at = g->windows[rank].base + from;

	for (uint64_t i = 0; i < bytes; i++)
		MUST(!at[i]);
}

/* Behind the last position of each part of the output. */
static void check_output(const struct gateway *g, int rank, uint64_t output)
{
	const struct layout *l = &g->moe.layout;
	const struct output_layout *o = &l->output;
	uint64_t ids = g->moe.config.layout == TERN_BY_SOURCE ? l->topk * 4ull : 0;
	const uint64_t begins[] = {
		o->x, o->scales, o->rows, o->topk_ids, o->topk_weights, o->bytes};
	const uint64_t row_bytes[] = {
		l->payload_bytes, l->scales_bytes, sizeof(struct tern_row), ids, ids};

	for (int i = 0; i < 5; i++)
		if (row_bytes[i])
			expect_untouched(g, rank, output + begins[i] + l->positions * row_bytes[i],
				begins[i + 1] - begins[i] - l->positions * row_bytes[i]);
}

/* Everything that belongs to somebody else. */
static void check_windows(const struct gateway *g)
{
	const struct layout *l = &g->moe.layout;

	for (int r = GATEWAY; r <= BESIDE; r++) {
		expect_untouched(g, r, 0, l->words);
		expect_untouched(g, r, l->notes, l->channels - l->notes);
		for (uint32_t slot = 0; slot < l->nr_slots; slot++) {
			check_output(g, r, layout_output(l, slot));
			expect_untouched(g, r, layout_counts(l, slot, 0, 0),
				2 * l->nr_ranks * l->counts_bytes);
			expect_untouched(g, r, layout_combine_row(l, slot, 0),
				(uint64_t)l->combine_rows * l->result_bytes);
			for (uint32_t source = 0; source < SOURCE; source++)
				expect_untouched(
					g, r, layout_region(l, slot, source), l->region_bytes);
			expect_untouched(g, r, layout_region(l, slot, NR_RANKS),
				layout_output(l, slot) - layout_region(l, slot, NR_RANKS));
			for (uint32_t kind = 0; kind < NR_WORD_KINDS; kind++)
				for (uint32_t source = 0; source < NR_RANKS; source++)
					if (kind != WORD_DISPATCH || source != SOURCE)
						expect_untouched(g, r,
							layout_word(l, slot, (enum word_kind)kind,
								source),
							8);
		}
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bytes b = {data, size};
	struct gateway g;
	uint32_t channel;

	gateway_open(&g, &b);
	channel = topology_channel(&g.moe.topology, SOURCE, g.moe.topology.node_of[GATEWAY]);
	for (uint32_t i = 0; i < 4 && b.left; i++) {
		uint8_t *chunk = own(&g.moe, layout_chunk(&g.moe.layout, channel, i % 2));

		write_chunk(&b, &g.moe.layout, chunk);
		spoil(&b, &g.moe.layout, chunk);
		if (!relay_take(&g.moe, SOURCE, channel, i % 2))
			break;
	}
	check_windows(&g);
	gateway_close(&g);
	return 0;
}
