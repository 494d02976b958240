/* SPDX-License-Identifier: Apache-2.0 */
/* What a row becomes when it travels in fewer bits. Written from the formats' definitions and not
 * from Tern's kernels, so that comparing a run over Tern with one that never left the process
 * checks those kernels too. */
#ifndef TERN_EXAMPLES_GENERATE_WIRE_H
#define TERN_EXAMPLES_GENERATE_WIRE_H

#include <stdint.h>

enum wire_type {
	WIRE_FP32,
	WIRE_BF16,
	WIRE_FP8 /* e4m3 with one fp32 scale for each block of 128 */
};

#define WIRE_BLOCK 128

uint16_t bf16_from_float(float value);
float float_from_bf16(uint16_t half);
float float_from_e4m3(uint8_t byte);

void row_to_bf16(const float *row, uint32_t nr, uint16_t *out);
void row_from_bf16(const uint16_t *row, uint32_t nr, float *out);
void row_from_e4m3(const uint8_t *row, const float *scales, uint32_t nr, float *out);

/* The values that arrive when `row` is sent as this type. */
void row_round(enum wire_type type, float *row, uint32_t nr);

const char *wire_name(enum wire_type type);

#endif
