/* SPDX-License-Identifier: Apache-2.0 */
#include "testkit/presets.h"

#include <string.h>

const struct preset presets[] = {
	{"deepseek-v3", 7168, 256, 8, 2048},
	{"kimi-k2", 7168, 384, 8, 2048},
	{"qwen3-30b-a3b", 2048, 128, 8, 768},
	{"qwen3-235b-a22b", 4096, 128, 8, 1536},
	{"gpt-oss-120b", 2880, 128, 4, 2880},
	{"glm-4.5", 5120, 160, 8, 1536},
};

const unsigned int nr_presets = sizeof(presets) / sizeof(presets[0]);

const struct preset *preset_find(const char *name)
{
	unsigned int i;

	for (i = 0; i < nr_presets; i++)
		if (!strcmp(presets[i].name, name))
			return &presets[i];
	return NULL;
}
