/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange/cpu/outgoing.h"

#include "exchange/arguments.h"
#include "exchange/cpu/kernels/kernels.h"

struct row_source dispatch_payload(const tern_moe *moe, const struct tern_dispatch *args,
	uint32_t token, const struct row_place *converted)
{
	const struct tern_moe_config *c = &moe->config;
	const uint8_t *x = (const uint8_t *)args->x +
			   (size_t)token * (args->x_stride ? args->x_stride : x_row_bytes(moe));

	if (c->x_dtype != c->dispatch_dtype) {
		quantise_row(
			x, c->x_dtype, c->hidden, c->scale, converted->payload, converted->scales);
		return (struct row_source){converted->payload, converted->scales};
	}
	return (struct row_source){x,
		args->scales
			? (const uint8_t *)args->scales +
				  (size_t)token * (args->scales_stride ? args->scales_stride
								       : moe->layout.scales_bytes)
			: NULL};
}

void dispatch_header(const tern_moe *moe, const struct slot *s, uint32_t token,
	const struct token_rows *rows, uint32_t row, struct row_header *header)
{
	uint32_t *home_next = home_counter(moe, s->home_next, rows->rows[row].rank, token);

	header->token = token;
	header->nr_routes = rows->rows[row].nr;
	header->home_row = *home_next;
	*home_next += results_of_row(moe, header->nr_routes);
	for (uint32_t i = 0; i < rows->rows[row].nr; i++) {
		uint32_t k = rows->k[rows->rows[row].first + i];
		size_t index = (size_t)token * moe->config.topk + k;

		header->routes[i] =
			(struct route){.expert = (uint16_t)moe->placement.local[s->physical[index]],
				.k = (uint16_t)k,
				.weight = s->weights[index]};
	}
}
