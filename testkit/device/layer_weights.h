/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of a rank's experts in a device's memory, for layers that are measured or compared. */
#ifndef TERN_TESTKIT_DEVICE_LAYER_WEIGHTS_H
#define TERN_TESTKIT_DEVICE_LAYER_WEIGHTS_H

#include "testkit/device/ops.h"
#include "tern_layer.h"

/* All zeros: there are none. */
struct layer_weights {
	const struct bench_device_ops *ops;
	uint32_t hidden, inner, first_expert, nr_experts;
	bool scaled;
	void *gate_up, *down;
	float *gate_up_scales, *down_scales;
};

/* For that exchange's experts here; those that lie there are kept if they are alike. Of an error
 * tern_last_error() tells, and layer_weights_free is called all the same. */
int layer_weights_create(struct layer_weights *w, const struct bench_device_ops *ops,
	const tern_moe *moe, uint32_t inner);
/* exact: testkit/layer_values.h; else random. */
int layer_weights_fill(const struct layer_weights *w, bool exact, uint64_t seed, void *stream);
void layer_weights_free(struct layer_weights *w);
void layer_weights_give(const struct layer_weights *w, struct tern_layer_config *config);

#endif
