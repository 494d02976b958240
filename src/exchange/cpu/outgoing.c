/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange/cpu/outgoing.h"

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
