/* SPDX-License-Identifier: Apache-2.0 */
#include "path/partings.h"

#include <stdlib.h>

#include "base/error.h"
#include "exchange/wire.h"

#define PART_BITS 6
#define PART_MASK ((1u << PART_BITS) - 1)
#define ALL_TOLD (7u << 24)
#define NOBODY ((1u << 2 * PART_BITS) - 1)

int partings_open(struct partings *p, uint32_t nr_ranks)
{
	p->told = calloc(nr_ranks, sizeof(*p->told));
	p->told_ns = calloc(nr_ranks, sizeof(*p->told_ns));
	return p->told && p->told_ns ? 0 : fail(TERN_ERR_NOMEM, "no memory for the partings of %u ranks", nr_ranks);
}

void partings_close(struct partings *p)
{
	free(p->told);
	free(p->told_ns);
	*p = (struct partings){NULL, NULL};
}

void partings_bits(uint64_t parting, uint32_t bits[PARTING_IMMEDIATES])
{
	const uint32_t part[PARTING_IMMEDIATES] = {(uint32_t)-parting_error(parting),
		(uint32_t)parting_peer(parting), (uint32_t)parting_peer(parting) >> PART_BITS};

	for (uint32_t i = 0; i < PARTING_IMMEDIATES; i++)
		bits[i] = i << PART_BITS | (part[i] & PART_MASK);
}

void partings_note(struct partings *p, uint32_t source, uint32_t bits, uint64_t now_ns)
{
	uint32_t which = bits >> PART_BITS;

	if (which >= PARTING_IMMEDIATES)
		return;
	atomic_store_explicit(&p->told_ns[source], now_ns, memory_order_relaxed);
	atomic_fetch_or_explicit(&p->told[source], 1u << (24 + which) | (bits & PART_MASK) << (8 * which),
		memory_order_release);
}

static uint32_t told_by(const struct partings *p, uint32_t rank)
{
	return atomic_load_explicit(&p->told[rank], memory_order_acquire);
}

bool partings_told(const struct partings *p, uint32_t rank)
{
	return (told_by(p, rank) & ALL_TOLD) == ALL_TOLD;
}

uint64_t partings_word(const struct partings *p, uint32_t rank)
{
	uint32_t told = told_by(p, rank);
	uint32_t peer = (told >> 8 & PART_MASK) | (told >> 16 & PART_MASK) << PART_BITS;

	if ((told & ALL_TOLD) != ALL_TOLD)
		return 0;
	return parting_make(-(int)(told & PART_MASK), peer == NOBODY ? -1 : (int)peer);
}

uint64_t partings_of(const struct partings *p, uint32_t rank, uint64_t now_ns)
{
	uint64_t word = partings_word(p, rank);

	if (word && !parting_error(word) &&
		now_ns - atomic_load_explicit(&p->told_ns[rank], memory_order_relaxed) < PEACE_NS)
		return 0;
	return word;
}
