/* SPDX-License-Identifier: Apache-2.0 */
/* Fresh memory for the next view of an elastic exchange on devices. Members of a view are all in
 * one pane of the windows. Who is not among them, and stores still, knows the one before. Before
 * that is used again each rank puts other memory behind it (window_renew) and passes it to the
 * members, who map it where the old one lies: beside rounds, or, if there was no time for it, and
 * where windows have but one pane, when the view is acted on. docs/survive.md, "On GPUs". */
#ifndef TERN_GPU_HOST_FRESH_H
#define TERN_GPU_HOST_FRESH_H

#include "gpu/host/inside.h"

/* Collective. Closing is fine after any failure. */
int fresh_open(tern_moe *moe);
void fresh_close(tern_moe *moe);

/* In which one a view is. */
uint32_t fresh_pane(const struct device *d, uint64_t view);

/* Collective, in a view that is acted on: when it returns 0 all members act on it, and have its
 * memory mapped. TERN_ERR_MEMBERS: one has died meanwhile. */
int fresh_await(tern_moe *moe);

/* This rank has time: what the next view needs is made, as far as nobody has to be waited for. */
void fresh_prepare(tern_moe *moe);

#endif
