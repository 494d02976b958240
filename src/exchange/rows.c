/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange/rows.h"

#include <string.h>

bool header_take_within(
	const tern_moe *moe, const void *shared, uint64_t room, union header_copy *copy)
{
	struct row_header *header = &copy->header;

	if (room < sizeof(*header))
		return false;
	memcpy(header, shared, sizeof(*header));
	if (header->nr_routes < 1 || header->nr_routes > moe->config.topk ||
		header->token >= moe->config.max_tokens ||
		header->home_row >= moe->layout.combine_rows ||
		results_of_row(moe, header->nr_routes) >
			moe->layout.combine_rows - header->home_row)
		return false;
	if (room - sizeof(*header) < header->nr_routes * sizeof(header->routes[0]))
		return false;
	memcpy(header->routes, (const uint8_t *)shared + sizeof(*header),
		header->nr_routes * sizeof(header->routes[0]));
	for (uint32_t i = 0; i < header->nr_routes; i++)
		if (header->routes[i].k >= moe->config.topk)
			return false;
	return true;
}

bool header_take(const tern_moe *moe, const struct row_header *shared, union header_copy *copy)
{
	return header_take_within(moe, shared, moe->layout.header_bytes, copy);
}

bool positions_fit(const struct slot *s, const struct row_header *header)
{
	for (uint32_t i = 0; i < header->nr_routes; i++)
		if (header->routes[i].position >= s->extent)
			return false;
	return true;
}

void row_describe(const tern_moe *moe, uint8_t *output, uint64_t position, uint32_t source,
	const struct row_header *header, const struct route *route)
{
	const struct output_layout *o = &moe->layout.output;
	struct tern_row *row = (struct tern_row *)(output + o->rows) + position;
	uint32_t topk = moe->config.topk;
	int32_t *ids = (int32_t *)(output + o->topk_ids) + position * topk;
	float *weights = (float *)(output + o->topk_weights) + position * topk;

	*row = (struct tern_row){.rank = (int32_t)source, .token = (int32_t)header->token, .k = -1};
	if (moe->config.layout != TERN_BY_SOURCE) {
		row->k = route->k;
		row->weight = route->weight;
		return;
	}
	for (uint32_t k = 0; k < topk; k++) {
		ids[k] = -1;
		weights[k] = 0;
	}
	for (uint32_t i = 0; i < header->nr_routes; i++) {
		ids[header->routes[i].k] = header->routes[i].expert;
		weights[header->routes[i].k] = header->routes[i].weight;
	}
}

void rows_place(const tern_moe *moe, struct row_op *op, bool stream, uint8_t *output,
	uint32_t source, const struct row_header *header)
{
	uint8_t *x = output + moe->layout.output.x, *scales = output + moe->layout.output.scales;
	uint32_t places = moe->config.layout == TERN_BY_SOURCE ? 1 : header->nr_routes;

	for (uint32_t i = 0; i < places; i++) {
		row_to_position(moe, op, stream, x, scales, header->routes[i].position);
		row_describe(moe, output, header->routes[i].position, source, header,
			&header->routes[i]);
	}
}
