/* SPDX-License-Identifier: Apache-2.0 */
#include "testkit/words.h"

#include <stddef.h>

const struct word mode_words[] = {
	{"ll", TERN_LOW_LATENCY}, {"ht", TERN_HIGH_THROUGHPUT}, {"auto", TERN_AUTO}, {NULL, 0}};
const struct word dtype_words[] = {{"fp8", TERN_FP8_E4M3}, {"bf16", TERN_BF16}, {"fp16", TERN_FP16},
	{"fp32", TERN_FP32}, {"bytes", TERN_BYTES}, {NULL, 0}};
const struct word combine_dtype_words[] = {
	{"bf16", TERN_BF16}, {"fp16", TERN_FP16}, {"fp32", TERN_FP32}, {NULL, 0}};
const struct word layout_words[] = {{"padded", TERN_PADDED}, {"contiguous", TERN_CONTIGUOUS},
	{"source", TERN_BY_SOURCE}, {NULL, 0}};
const struct word reduce_words[] = {
	{"home", TERN_REDUCE_HOME}, {"expert", TERN_REDUCE_EXPERT}, {NULL, 0}};
const struct word weight_words[] = {
	{"combine", TERN_WEIGHTS_COMBINE}, {"pass", TERN_WEIGHTS_PASS}, {NULL, 0}};
const struct word replicas_words[] = {{"auto", TERN_REPLICAS_AUTO},
	{"in-turn", TERN_REPLICAS_IN_TURN}, {"least-loaded", TERN_REPLICAS_LEAST_LOADED},
	{NULL, 0}};
const struct word scale_words[] = {
	{"fp32", TERN_SCALE_FP32}, {"ue8m0", TERN_SCALE_UE8M0}, {NULL, 0}};
const struct word input_words[] = {
	{"exact", INPUT_EXACT}, {"random", INPUT_RANDOM}, {"special", INPUT_SPECIAL}, {NULL, 0}};
const struct word device_words[] = {
	{"cpu", TERN_DEVICE_CPU}, {"cuda", TERN_DEVICE_CUDA}, {NULL, 0}};
const struct word against_words[] = {{"mpi", 1}, {"libfabric", 2}, {"nccl", 3}, {NULL, 0}};

static const char *name_of(const struct word *words, int value)
{
	for (; words->name; words++)
		if (words->value == value)
			return words->name;
	return "?";
}

const char *mode_name(enum tern_mode mode)
{
	return name_of(mode_words, mode);
}

const char *dtype_name(enum tern_dtype dtype)
{
	return name_of(dtype_words, dtype);
}

const char *layout_name(enum tern_layout layout)
{
	return name_of(layout_words, layout);
}

const char *reduce_name(enum tern_reduce reduce)
{
	return name_of(reduce_words, reduce);
}

const char *weights_name(enum tern_weights value)
{
	return name_of(weight_words, value);
}

const char *scale_name(enum tern_scale scale)
{
	return scale == TERN_SCALE_NONE ? "none" : name_of(scale_words, scale);
}

const char *input_name(enum job_input input)
{
	return name_of(input_words, input);
}
