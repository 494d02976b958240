/* SPDX-License-Identifier: Apache-2.0 */
/* The divisions by which usual blocks are scaled, for every mantissa: exponents only move the
 * point. A GPU's reciprocal is not the CPU's, so it may be off by 2 units in its last place. */
#include "gpu/cuda/common/quantise.cuh"

#include <stdio.h>

static uint32_t wrong(float quotient, float a, float b)
{
	return __float_as_uint(quotient) != __float_as_uint(a / b);
}

int main(void)
{
	uint32_t scales = 0, factors = 0;

	for (uint32_t mantissa = 0; mantissa < 1u << 23; mantissa++) {
		float x = __uint_as_float(0x3f800000u | mantissa);

		scales += wrong(divide_usual(x, 448.0f, 1.0f / 448.0f), x, 448.0f);
		for (uint32_t off = 0; off < 5; off++)
			factors += wrong(divide_usual(448.0f, x,
						 __uint_as_float(__float_as_uint(1 / x) + off - 2)),
				448.0f, x);
	}
	printf("%s - divisions: %u scales and %u factors are not the nearest\n",
		scales || factors ? "not ok" : "ok", scales, factors);
	return scales || factors;
}
