/* SPDX-License-Identifier: Apache-2.0 */
/* Writes down the routing of a run: an exchange that notes ids and weights and passes the call on.
 */
#ifndef TERN_EXAMPLES_GENERATE_TRACE_H
#define TERN_EXAMPLES_GENERATE_TRACE_H

#include "moe.h"

struct trace;

struct trace *trace_create(uint32_t nr_layers, uint32_t topk); /* NULL: no memory */
void trace_destroy(struct trace *trace);

/* Notes what goes through; inner must outlive the exchange. One at a time. */
struct moe_exchange trace_exchange(struct trace *trace, const struct moe_exchange *inner);

/* Writes NAME_ids.npy (int32 [tokens][topk]) and NAME_weights.npy (float32): the tokens of layer 0
 * in the order in which they were served, then those of layer 1, and so on. */
int trace_write(const struct trace *trace, const char *name, struct fault *fault);

#endif
