/* SPDX-License-Identifier: Apache-2.0 */
/* What the flags call the values of the settings. A table ends with a NULL name. */
#ifndef TERN_TESTKIT_WORDS_H
#define TERN_TESTKIT_WORDS_H

#include "testkit/job.h"

struct word {
	const char *name;
	int value;
};

extern const struct word mode_words[];
extern const struct word dtype_words[];
extern const struct word combine_dtype_words[];
extern const struct word layout_words[];
extern const struct word reduce_words[];
extern const struct word weight_words[];
extern const struct word replicas_words[];
extern const struct word scale_words[];
extern const struct word input_words[];
extern const struct word against_words[];
extern const struct word device_words[];

/* What the flags call a setting. */
const char *mode_name(enum tern_mode mode);
const char *dtype_name(enum tern_dtype dtype);
const char *layout_name(enum tern_layout layout);
const char *reduce_name(enum tern_reduce reduce);
const char *weights_name(enum tern_weights weights);
const char *scale_name(enum tern_scale scale);
const char *input_name(enum job_input input);

#endif
