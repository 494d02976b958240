/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange/cpu/kernels/kernels.h"

#include <string.h>

/* ThreadSanitizer does not see streaming stores. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#include <emmintrin.h>

/* Past the caches: the line is not read before it is overwritten, and does not push out what will
 * be read again. */
void stream_row(void *to, const void *from, uint64_t bytes)
{
	__m128i *out = to;
	const __m128i *in = from;
	uint64_t i, nr = bytes / sizeof(*in);

	for (i = 0; i + 4 <= nr; i += 4) {
		__m128i a = _mm_loadu_si128(in + i), b = _mm_loadu_si128(in + i + 1);
		__m128i c = _mm_loadu_si128(in + i + 2), d = _mm_loadu_si128(in + i + 3);

		_mm_stream_si128(out + i, a);
		_mm_stream_si128(out + i + 1, b);
		_mm_stream_si128(out + i + 2, c);
		_mm_stream_si128(out + i + 3, d);
	}
	for (; i < nr; i++)
		_mm_stream_si128(out + i, _mm_loadu_si128(in + i));
}

void stream_fence(void)
{
	_mm_sfence();
}

#else

void stream_row(void *to, const void *from, uint64_t bytes)
{
	memcpy(to, from, bytes);
}

void stream_fence(void)
{
}

#endif
