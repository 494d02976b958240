/* SPDX-License-Identifier: Apache-2.0 */
/* Number formats, bit by bit: the reference's own conversions, which share nothing with the
 * library's. */
#ifndef TERN_TESTKIT_CONVERT_H
#define TERN_TESTKIT_CONVERT_H

#include "tern.h"

float bf16_decode(uint16_t code);
float fp16_decode(uint16_t code);
float e4m3_decode(uint8_t code);

/* To nearest, ties to even. NaN stays NaN: bf16 keeps its top payload bits and sets the quiet bit,
 * fp16 gives 0x7e00, e4m3 0x7f, with the sign. Too large: infinity, in e4m3 (which has none) +-448.
 */
uint16_t bf16_encode(float value);
uint16_t fp16_encode(float value);
uint8_t e4m3_encode(float value);

/* Bytes of one element: 0 for TERN_BYTES and for what is no dtype. */
uint32_t element_bytes(enum tern_dtype dtype);

/* n elements of BF16, FP16 or FP32 to fp32 and back. */
void decode_row(enum tern_dtype dtype, const void *row, float *values, uint32_t n);
void encode_row(enum tern_dtype dtype, const float *values, void *row, uint32_t n);

#define SCALE_BLOCK 128

uint32_t one_scale_bytes(enum tern_scale scale); /* of one: 4, 1 or 0 */

/* hidden fp32 values to E4M3 with one scale for each 128 elements; scales receives floats or bytes.
 */
void reference_quantise(enum tern_scale scale, const float *values, uint32_t hidden,
	uint8_t *elements, void *scales);

#endif
