/* SPDX-License-Identifier: Apache-2.0 */
#include "soak/oracle.h"

#include <stdlib.h>

/* Ranks are in different rounds at a time; what is thrown out is made again. */
#define MOST_ROUNDS 16

struct page {
	struct reference *reference; /* NULL: not used yet */
	uint64_t round;
	bool judged; /* over is known */
	int over;
};

struct oracle {
	const struct job *job;
	uint32_t nr_pages;
	struct page pages[MOST_ROUNDS];
};

struct oracle *oracle_create(const struct job *job)
{
	struct oracle *oracle = calloc(1, sizeof(*oracle));
	uint32_t nr = 2 * job->config.nr_slots;

	if (!oracle)
		return NULL;
	oracle->job = job;
	oracle->nr_pages = nr < MOST_ROUNDS ? nr : MOST_ROUNDS;
	return oracle;
}

void oracle_destroy(struct oracle *oracle)
{
	for (uint32_t i = 0; oracle && i < oracle->nr_pages; i++)
		reference_destroy(oracle->pages[i].reference);
	free(oracle);
}

/* NULL: no memory. */
static struct page *page_of(struct oracle *oracle, uint64_t round)
{
	struct page *page = &oracle->pages[round % oracle->nr_pages];

	if (page->reference && page->round == round)
		return page;
	if (!page->reference)
		page->reference = reference_create(oracle->job);
	if (!page->reference)
		return NULL;
	reference_set_round(page->reference, round);
	page->round = round;
	page->judged = false;
	return page;
}

struct reference *oracle_round(struct oracle *oracle, uint64_t round)
{
	struct page *page = page_of(oracle, round);

	return page ? page->reference : NULL;
}

static bool is_over(const struct tern_moe_config *config, const struct received_layout *layout)
{
	if (config->layout != TERN_PADDED)
		return layout->end > config->capacity;
	for (uint32_t i = 0; i < layout->nr_groups; i++)
		if (layout->counts[i] > config->capacity)
			return true;
	return false;
}

int oracle_over_capacity(struct oracle *oracle, uint64_t round)
{
	const struct job *job = oracle->job;
	struct page *page = job->config.capacity ? page_of(oracle, round) : NULL;

	if (!page || page->judged)
		return page ? page->over : -1;
	page->judged = true;
	page->over = -1;
	for (uint32_t rank = 0; rank < job->nr_ranks && page->over < 0; rank++) {
		struct received_layout layout;

		if (received_layout_create(page->reference, rank, &layout))
			continue;
		if (is_over(&job->config, &layout))
			page->over = (int)rank;
		received_layout_destroy(&layout);
	}
	return page->over;
}
