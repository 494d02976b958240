/* SPDX-License-Identifier: Apache-2.0 */
/* What a person sees: texts while they grow, texts when they are done, and figures. */
#ifndef TERN_EXAMPLES_GENERATE_REPORT_H
#define TERN_EXAMPLES_GENERATE_REPORT_H

#include "gather.h"
#include "options.h"

#define LAYER_FAR 0.01 /* its h is rounded to bf16, and its sums are in another order */

enum verdict {
	VERDICT_UNKNOWN, /* not checked */
	VERDICT_SAME,    /* all texts, and every bit of the logits they were chosen from */
	VERDICT_DIFFERENT,
	VERDICT_NEAR /* with --layer: logits_far is at most LAYER_FAR */
};

/* What runs where. */
void show_where(int nr_ranks, int nr_gpus, const char *why_no_gpu);

/* A line for each prompt with the end of its text; drawn over the lines of the call before. */
void show_live(const struct options *options, const struct texts *texts, bool first);

/* Takes the lines of show_live away. */
void clear_live(const struct options *options);

/* Who died, and how long it took until the others had made the round again. */
void show_change(const struct moe_change *change);

void show_texts(const struct options *options, const struct texts *texts, uint32_t nr_ranks);
void show_figures(
	const struct options *options, const struct figures *figures, enum verdict verdict);

int write_json(const char *path, const struct options *options, const struct texts *texts,
	const struct figures *figures, enum verdict verdict, struct fault *fault);

#endif
