/* SPDX-License-Identifier: Apache-2.0 */
/* The command line. */
#ifndef TERN_EXAMPLES_GENERATE_OPTIONS_H
#define TERN_EXAMPLES_GENERATE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "fault.h"
#include "moe.h"
#include "serve.h"

enum device_choice {
	DEVICE_CPU,
	DEVICE_CUDA,
	DEVICE_AUTO /* CUDA where all ranks can */
};

struct options {
	const char *model; /* folder */
	char **prompts;    /* malloc'd, each and all */
	struct serve_plan plan;
	struct moe_types types;
	enum device_choice device;
	bool check; /* run all prompts again in one process, and compare */
	bool live;  /* show texts as they grow, where standard output is a terminal */
	bool help;
	bool layer;          /* experts are layers of Tern */
	uint32_t nr_copies;  /* of each expert */
	uint32_t nr_repeats; /* of all texts */
	int wait_ms;
	const char *trace; /* NULL: none, as is json */
	const char *json;
};

extern const char options_usage[];

/* To be freed by options_free, whatever it returns. */
int options_read(int argc, char **argv, struct options *options, struct fault *fault);
void options_free(struct options *options);

#endif
