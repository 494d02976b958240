/* SPDX-License-Identifier: Apache-2.0 */
/* On the engine's proxy: what makes an arrival word of immediates. */
#include "gpu/host/internode_inside.h"

#include "exchange/wire.h"

/* Release: the engine has promised that the message is visible to this thread, and
 * internode_rows_arrived that its rows are to the device. Pairs with internode_collect in kernels.
 */
static void internode_word_publish(uint8_t *word, uint32_t epoch)
{
	__atomic_store_n((uint32_t *)word, epoch, __ATOMIC_RELEASE);
}

/* Of a dispatch with gates: which runs have come; and, once, that the head has, behind the runs
 * that came before it, so that nobody takes those of an earlier round for this one's. Release: as
 * above, of each run. Pairs with internode_collect, of heads, and with internode_collect_runs. */
static void internode_runs_publish(uint8_t *line, uint32_t groups, uint32_t epoch)
{
	__atomic_store_n((uint32_t *)(line + INTERNODE_RUNS_OFFSET), groups, __ATOMIC_RELEASE);
	__atomic_store_n((uint32_t *)(line + INTERNODE_HEAD_OFFSET), epoch, __ATOMIC_RELEASE);
}

/* Release: what came of the rank was published before. Pairs with internode_collect in kernels. */
static void internode_gone_publish(uint8_t *word, enum internode_gone how)
{
	__atomic_store_n((uint32_t *)(word + INTERNODE_GONE_OFFSET), how, __ATOMIC_RELEASE);
}

static void publish_gone(struct device_internode *internode, uint32_t rank, enum internode_gone how)
{
	uint32_t nr_kinds = internode->moe->config.nr_slots * NR_INTERNODE_KINDS;

	for (uint32_t i = 0; i < nr_kinds; i++)
		internode_gone_publish(
			internode->words +
				((uint64_t)i * internode->moe->nr_ranks + rank) * GPU_LINE_BYTES,
			how);
}

void internode_on_peer_down(void *ctx, uint32_t peer, int error)
{
	struct device_internode *internode = ctx;

	if (error == TERN_ERR_PEER_DEAD && !internode->first_lost &&
		!leave_statuses_told(&internode->leave_statuses, peer))
		__atomic_store_n(&internode->first_lost, peer + 1, __ATOMIC_RELEASE);
	publish_gone(internode, peer, INTERNODE_LOST);
}

static void part_arrived(struct device_internode *internode, uint32_t source, uint32_t bits)
{
	leave_statuses_note(&internode->leave_statuses, source, bits,
		scheduler_now(internode->moe->group->scheduler));
	if (leave_statuses_told(&internode->leave_statuses, source))
		publish_gone(internode, source,
			leave_status_error(leave_statuses_word(&internode->leave_statuses, source))
				? INTERNODE_LOST
				: INTERNODE_LEFT);
}

void internode_on_immediate(void *ctx, uint32_t peer, uint32_t immediate)
{
	struct device_internode *internode = ctx;
	uint32_t kind = immediate >> 21 & 7, source = immediate >> 9 & 0xfff,
		 slot = immediate >> 5 & 0xf, nr_ranks = internode->moe->nr_ranks;
	const struct internode_head *head;
	struct coming *coming, came;
	uint8_t *line;
	uint64_t at;
	bool run = immediate & INTERNODE_IMMEDIATE_RUN,
	     gated = internode->moe->config.gate_rows && kind == INTERNODE_DISPATCH;

	(void)peer; /* not every network can tell */
	if (source >= nr_ranks || internode->number_of[source] == UINT32_MAX)
		return;
	if (kind == INTERNODE_PART)
		part_arrived(internode, source, immediate & 0x1ff);
	if (kind >= NR_INTERNODE_KINDS || slot >= internode->moe->config.nr_slots)
		return;
	at = ((uint64_t)slot * NR_INTERNODE_KINDS + kind) * nr_ranks + source;
	line = internode->words + at * GPU_LINE_BYTES;
	coming = &internode->coming[at];
	coming->nr_runs += run;
	coming->groups |= run ? 1u << (immediate & INTERNODE_IMMEDIATE_GROUP) : 0;
	coming->head = coming->head || !run;
	head = (const struct internode_head *)(internode->landing +
					       message_at(&internode->sizes,
						       internode->nr_internode, slot,
						       internode->number_of[source],
						       (enum internode_kind)kind));
	if (!coming->head || (!gated && coming->nr_runs != head->nr_runs))
		return;
	came = *coming;
	if (coming->nr_runs == head->nr_runs)
		*coming = (struct coming){0};
	if (came.nr_runs && !internode_rows_arrived(&internode->rows))
		return; /* who waits for the word says so when its time is over */
	if (gated)
		internode_runs_publish(line, came.groups, head->epoch);
	if (came.nr_runs == head->nr_runs)
		internode_word_publish(line, head->epoch);
}
