/* SPDX-License-Identifier: Apache-2.0 */
/* The seam between the model and whatever carries tokens to experts.
 *
 *	model.c  -->  moe_exchange.run  -->  moe_local.c   all experts are in this process
 *	                                     moe_tern.c    they are spread over the ranks of a Tern group
 *	                                     trace.c       writes down the routing, then passes the call on
 *
 * An exchange turns hidden[t] into out[t] = sum over k of weights[t][k] *
 *expert[ids[t][k]](hidden[t]). Both kinds round what travels (x on the way out, y and the sum on
 *the way home) and sum in the order of k, so their results are the same bits.
 */
#ifndef TERN_EXAMPLES_GENERATE_MOE_H
#define TERN_EXAMPLES_GENERATE_MOE_H

#include <stdint.h>

#include "experts.h"
#include "fault.h"
#include "wire.h"

struct moe_call {
	uint32_t layer;
	uint32_t nr_tokens;   /* may be 0: a rank without tokens takes part all the same */
	const float *hidden;  /* [nr_tokens][hidden] */
	const int32_t *ids;   /* [nr_tokens][topk] */
	const float *weights; /* [nr_tokens][topk] */
	float *out;           /* [nr_tokens][hidden] */
};

struct moe_exchange {
	int (*run)(void *ctx, const struct moe_call *call, struct fault *fault);
	void *ctx;
};

struct moe_types {
	enum wire_type dispatch;
	enum wire_type combine; /* WIRE_FP32 or WIRE_BF16 */
};

struct moe_local;

/* For up to max_tokens a call. experts must hold all of the model's, and outlive this. NULL: no
 * memory. */
struct moe_local *moe_local_create(
	struct experts *experts, uint32_t topk, uint32_t max_tokens, struct moe_types types);
void moe_local_destroy(struct moe_local *local);
struct moe_exchange moe_local_exchange(struct moe_local *local);

#endif
