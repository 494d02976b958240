/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of rows for one instruction set. reduce.c includes this once for each, with
 *   LANES     32-bit lanes of its vectors
 *   TARGET    the attribute that compiles for it, or nothing
 *   NAME(x)   x with its suffix
 *   FUSED(weight, x, sum)   sum + weight * x, rounded once
 * and undefines them here again. Vectors are the compiler's, so the same lines serve every
 * processor; sums stay in registers while all rows pass. */

typedef float NAME(f32) __attribute__((vector_size(LANES * 4)));
typedef uint32_t NAME(u32) __attribute__((vector_size(LANES * 4)));

INLINE TARGET NAME(u32) NAME(load)(const uint8_t *from)
{
	NAME(u32) lanes;

	memcpy(&lanes, from, sizeof(lanes));
	return lanes;
}

INLINE TARGET void NAME(store)(uint8_t *to, NAME(u32) lanes)
{
	memcpy(to, &lanes, sizeof(lanes));
}

INLINE TARGET NAME(u32) NAME(select)(NAME(u32) mask, NAME(u32) yes, NAME(u32) no)
{
	return no ^ ((no ^ yes) & mask);
}

/* BF16 and FP16 come in pairs, the first in the lower half. Even and odd lanes are summed apart,
 * and meet again without a shuffle. */
INLINE TARGET NAME(f32) NAME(even_bf16)(NAME(u32) pairs)
{
	return (NAME(f32))(pairs << 16);
}

INLINE TARGET NAME(f32) NAME(odd_bf16)(NAME(u32) pairs)
{
	return (NAME(f32))(pairs & 0xffff0000);
}

/* To nearest even, in the upper half. A NaN out of arithmetic is quiet, so cutting it off leaves it
 * one. */
INLINE TARGET NAME(u32) NAME(round_bf16)(NAME(f32) sum)
{
	NAME(u32) bits = (NAME(u32))sum;

	return bits + ((0x7fff + ((bits >> 16) & 1)) & (NAME(u32))(sum == sum));
}

INLINE TARGET NAME(u32) NAME(pack_bf16)(NAME(f32) even, NAME(f32) odd)
{
	return (NAME(round_bf16)(even) >> 16) | (NAME(round_bf16)(odd) & 0xffff0000);
}

/* As in convert.h, for 16 bits in the lower half of each lane. */
INLINE TARGET NAME(f32) NAME(from_fp16)(NAME(u32) half)
{
	NAME(u32) rest = half & 0x7fff, sign = (half & 0x8000) << 16;
	NAME(u32) finite = (NAME(u32))((NAME(f32))(rest << 13) * 0x1p112f);

	return (NAME(f32))(
		sign | NAME(select)((NAME(u32))(rest >= 0x7c00), 0x7f800000 | rest << 13, finite));
}

INLINE TARGET NAME(f32) NAME(even_fp16)(NAME(u32) pairs)
{
	return NAME(from_fp16)(pairs & 0xffff);
}

INLINE TARGET NAME(f32) NAME(odd_fp16)(NAME(u32) pairs)
{
	return NAME(from_fp16)(pairs >> 16);
}

INLINE TARGET NAME(u32) NAME(round_fp16)(NAME(f32) sum)
{
	NAME(u32) bits = (NAME(u32))sum, rest = bits & 0x7fffffff, infinity = (bits & 0) + 0x7c00;
	NAME(u32) normal = (rest - 0x38000000 + 0xfff + ((rest >> 13) & 1)) >> 13;
	NAME(u32) small = (NAME(u32))((NAME(f32))rest + 0.5f) - 0x3f000000;
	NAME(u32) finite = NAME(select)((NAME(u32))(rest < 0x38800000), small, normal);

	finite = NAME(select)((NAME(u32))(rest >= 0x477ff000), infinity, finite);
	return ((bits >> 16) & 0x8000) |
	       NAME(select)((NAME(u32))(sum == sum), finite, infinity + 0x200);
}

INLINE TARGET NAME(u32) NAME(pack_fp16)(NAME(f32) even, NAME(f32) odd)
{
	return NAME(round_fp16)(even) | NAME(round_fp16)(odd) << 16;
}

/* nr_bytes: a multiple of two vectors. With a weight of 1 it is a sum, so one loop serves both. */
#define REDUCE_PAIRS(TYPE)                                                                         \
	static TARGET void NAME(reduce_##TYPE)(const uint8_t *const *rows, const float *weights,   \
		uint32_t nr_rows, uint32_t nr_bytes, uint8_t *out)                                 \
	{                                                                                          \
		for (uint32_t at = 0; at < nr_bytes; at += 8 * LANES) {                            \
			NAME(f32) a = {0}, b = {0}, c = {0}, d = {0};                              \
                                                                                                   \
			for (uint32_t r = 0; r < nr_rows; r++) {                                   \
				NAME(u32)                                                          \
				p = NAME(load)(rows[r] + at),                                      \
				q = NAME(load)(rows[r] + at + 4 * LANES);                          \
				float weight = weights ? weights[r] : 1.0f;                        \
                                                                                                   \
				a = FUSED(weight, NAME(even_##TYPE)(p), a);                        \
				b = FUSED(weight, NAME(odd_##TYPE)(p), b);                         \
				c = FUSED(weight, NAME(even_##TYPE)(q), c);                        \
				d = FUSED(weight, NAME(odd_##TYPE)(q), d);                         \
			}                                                                          \
			NAME(store)(out + at, NAME(pack_##TYPE)(a, b));                            \
			NAME(store)(out + at + 4 * LANES, NAME(pack_##TYPE)(c, d));                \
		}                                                                                  \
	}

REDUCE_PAIRS(bf16)
REDUCE_PAIRS(fp16)
#undef REDUCE_PAIRS

static TARGET void NAME(reduce_fp32)(const uint8_t *const *rows, const float *weights,
	uint32_t nr_rows, uint32_t nr_bytes, uint8_t *out)
{
	for (uint32_t at = 0; at < nr_bytes; at += 8 * LANES) {
		NAME(f32) a = {0}, b = {0};

		for (uint32_t r = 0; r < nr_rows; r++) {
			float weight = weights ? weights[r] : 1.0f;

			a = FUSED(weight, (NAME(f32))NAME(load)(rows[r] + at), a);
			b = FUSED(weight, (NAME(f32))NAME(load)(rows[r] + at + 4 * LANES), b);
		}
		NAME(store)(out + at, (NAME(u32))a);
		NAME(store)(out + at + 4 * LANES, (NAME(u32))b);
	}
}

#undef LANES
#undef TARGET
#undef NAME
#undef FUSED
