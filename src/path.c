/* SPDX-License-Identifier: Apache-2.0 */
#include "path.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

void path_publish(tern_moe *moe, uint32_t rank, uint32_t slot, enum word_kind kind, enum tern_phase phase, uint32_t count)
{
	const struct layout *l = &moe->layout;
	struct arrival *arrival = (struct arrival *)path_place(moe, rank, layout_word(l, slot, kind, moe->rank));
	struct doorbell *bell = (struct doorbell *)path_place(moe, rank, layout_doorbell(l, slot, phase));

	arrival_publish(arrival, word_make(moe->slots[slot].epoch, count));
	if (doorbell_ring(bell))
		syscall(SYS_futex, &bell->rung, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
