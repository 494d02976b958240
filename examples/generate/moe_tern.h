/* SPDX-License-Identifier: Apache-2.0 */
/* The exchange over a Tern group: experts are spread over its ranks in contiguous blocks. Prompts
 * travel in high-throughput mode (many tokens a call, counts first), decoding in low-latency mode
 * (few tokens, sent without asking). Rows arrive by expert, results come home one for each route
 * and are summed there, in the order of k. With a GPU, both take place in its memory, and rows are
 * copied from and to the CPU's, where the model is. */
#ifndef TERN_EXAMPLES_GENERATE_MOE_TERN_H
#define TERN_EXAMPLES_GENERATE_MOE_TERN_H

#include <stdbool.h>

#include "config.h"
#include "gpu.h"
#include "homes.h"
#include "moe.h"
#include "tern.h"

/* Durations of the calls of one mode, in their order. */
struct durations {
	uint64_t *dispatch_ns, *combine_ns;
	uint32_t nr, room;
};

struct moe_tern_config {
	tern_group *group;
	struct gpu *gpu; /* NULL: the CPU; the same on all ranks; it must outlive the exchange */
	const struct model_config *model;
	uint32_t prefill_tokens, decode_tokens; /* most that a rank passes to one call; the same on
						   all ranks */
	struct moe_types types;
	int wait_ms;
	bool elastic;       /* ranks may die */
	bool joins;         /* the group was joined: moe_tern_enter follows */
	uint32_t nr_copies; /* of each expert, on ranks in a row; 1, and elastic: see homes.h */
};

/* Ranks that died or came, and how long the others took to have the round made again that they were
 * in. */
struct moe_change {
	struct tern_view view;
	uint64_t made_ns;             /* when it was */
	uint64_t replayed_ns;         /* from where this rank noticed it; 0: not yet */
	struct homes_brought brought; /* to this rank */
};

struct moe_tern;

/* Collective: can this group exchange in the memory of the GPUs that its ranks have opened? The
 * same on all ranks; -1 says why not. */
int moe_tern_try_gpus(tern_group *group, struct fault *fault);

/* Collective. *moe is set only on success. */
int moe_tern_create(
	const struct moe_tern_config *config, struct moe_tern **moe, struct fault *fault);
void moe_tern_destroy(struct moe_tern *moe);

/* The experts that this rank has to load: ids[*nr], with room for *nr_places. */
const int32_t *moe_tern_experts(const struct moe_tern *moe, uint32_t *nr, uint32_t *nr_places);

/* Before the first call; they must outlive the exchange. Collective, but where the group was
 * joined. */
int moe_tern_use(struct moe_tern *moe, const struct moe_tern_config *config,
	const struct checkpoint *checkpoint, struct experts *experts, struct fault *fault);

/* In its place: experts are loaded here, as layers of Tern, and the CPU sees no rows in between.
 * bf16 both ways, and no elastic group. Durations are of the whole then, those of combines 0. */
int moe_tern_use_layers(struct moe_tern *moe, const struct moe_tern_config *config,
	const struct checkpoint *checkpoint, struct fault *fault);

struct moe_exchange moe_tern_prefill(struct moe_tern *moe);
struct moe_exchange moe_tern_decode(struct moe_tern *moe);

const struct durations *moe_tern_decode_durations(const struct moe_tern *moe);

/* Of a group that was joined, when experts are loaded: this rank is one of the others from here on,
 * and serves from its first moe_tern_gather on. */
int moe_tern_enter(struct moe_tern *moe, struct fault *fault);

/* tern_group_allgather, also when ranks die meanwhile. */
int moe_tern_gather(
	struct moe_tern *moe, const void *mine, void *all, size_t bytes, struct fault *fault);

/* After such a gathering: these told something, and of them these for the first time. All that have
 * told serve from here on, as far as they live. */
int moe_tern_told(struct moe_tern *moe, const uint64_t told[4], const uint64_t is_new[4],
	struct fault *fault);

/* All so far, where ranks may die. */
const struct moe_change *moe_tern_changes(const struct moe_tern *moe, uint32_t *nr);
bool moe_tern_has(const struct moe_tern *moe, uint32_t rank); /* it serves */
uint32_t moe_tern_lowest(const struct moe_tern *moe);         /* rank that does */

/* Both modes together, on this rank. */
int moe_tern_stats(const struct moe_tern *moe, struct tern_stats *stats, struct fault *fault);

#endif
