/* SPDX-License-Identifier: Apache-2.0 */
/* The shapes of well-known models, by name. */
#ifndef TERN_TESTKIT_PRESETS_H
#define TERN_TESTKIT_PRESETS_H

#include <stdint.h>

struct preset {
	const char *name;
	uint32_t hidden;
	uint32_t nr_experts;
	uint32_t topk;
	uint32_t inner; /* of one expert; 0: not known */
};

extern const struct preset presets[];
extern const unsigned int nr_presets;

/* NULL: no such preset. */
const struct preset *preset_find(const char *name);

#endif
