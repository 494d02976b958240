/* SPDX-License-Identifier: Apache-2.0 */
#include "path/leave_status.h"

#include <stdlib.h>

#include "base/error.h"
#include "exchange/wire.h"

#define PART_BITS 6
#define PART_MASK ((1u << PART_BITS) - 1)
#define ALL_TOLD (7u << 24)
#define NOBODY ((1u << 2 * PART_BITS) - 1)

int leave_statuses_open(struct leave_statuses *p, uint32_t nr_ranks)
{
	p->told = calloc(nr_ranks, sizeof(*p->told));
	p->told_ns = calloc(nr_ranks, sizeof(*p->told_ns));
	return p->told && p->told_ns
		       ? 0
		       : fail(TERN_ERR_NOMEM, "no memory for the leave_statuses of %u ranks",
				 nr_ranks);
}

void leave_statuses_close(struct leave_statuses *p)
{
	free(p->told);
	free(p->told_ns);
	*p = (struct leave_statuses){NULL, NULL};
}

void leave_statuses_forget(struct leave_statuses *p, uint32_t rank)
{
	atomic_store_explicit(&p->told[rank], 0, memory_order_relaxed);
}

void leave_statuses_bits(uint64_t leave_status, uint32_t bits[LEAVE_IMMEDIATES])
{
	const uint32_t part[LEAVE_IMMEDIATES] = {(uint32_t)-leave_status_error(leave_status),
		(uint32_t)leave_status_peer(leave_status),
		(uint32_t)leave_status_peer(leave_status) >> PART_BITS};

	for (uint32_t i = 0; i < LEAVE_IMMEDIATES; i++)
		bits[i] = i << PART_BITS | (part[i] & PART_MASK);
}

void leave_statuses_note(struct leave_statuses *p, uint32_t source, uint32_t bits, uint64_t now_ns)
{
	uint32_t which = bits >> PART_BITS;

	if (which >= LEAVE_IMMEDIATES)
		return;
	atomic_store_explicit(&p->told_ns[source], now_ns, memory_order_relaxed);
	atomic_fetch_or_explicit(&p->told[source],
		1u << (24 + which) | (bits & PART_MASK) << (8 * which), memory_order_release);
}

static uint32_t told_by(const struct leave_statuses *p, uint32_t rank)
{
	return atomic_load_explicit(&p->told[rank], memory_order_acquire);
}

bool leave_statuses_told(const struct leave_statuses *p, uint32_t rank)
{
	return (told_by(p, rank) & ALL_TOLD) == ALL_TOLD;
}

uint64_t leave_statuses_word(const struct leave_statuses *p, uint32_t rank)
{
	uint32_t told = told_by(p, rank);
	uint32_t peer = (told >> 8 & PART_MASK) | (told >> 16 & PART_MASK) << PART_BITS;

	if ((told & ALL_TOLD) != ALL_TOLD)
		return 0;
	return leave_status_make(-(int)(told & PART_MASK), peer == NOBODY ? -1 : (int)peer);
}

uint64_t leave_statuses_of(const struct leave_statuses *p, uint32_t rank, uint64_t now_ns)
{
	uint64_t word = leave_statuses_word(p, rank);

	if (word && !leave_status_error(word) &&
		now_ns - atomic_load_explicit(&p->told_ns[rank], memory_order_relaxed) < PEACE_NS)
		return 0;
	return word;
}
