/* SPDX-License-Identifier: Apache-2.0 */
/* How many thousand turns a second the processor's time stamp counter makes. An emulated processor
 * has the host's, and its kernel, which measures that by interrupts, is misled where the host is
 * busy: its clock has run four times as fast. Here each reading lies between two of the counter,
 * and those that were not interrupted count. */
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#if defined(__x86_64__)
#include <x86intrin.h>

struct moment {
	uint64_t ticks, ns;
};

static struct moment read_both(void)
{
	struct moment best = {0, 0};
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < 1000; i++) {
		struct timespec t;
		uint64_t before = __rdtsc(), after;

		clock_gettime(CLOCK_MONOTONIC_RAW, &t);
		after = __rdtsc();
		if (after - before >= least)
			continue;
		least = after - before;
		best = (struct moment){
			before + least / 2, (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec};
	}
	return best;
}

int main(void)
{
	struct moment first = read_both(), last;

	nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* what it is measured over */
	last = read_both();
	printf("%.0f\n", (double)(last.ticks - first.ticks) * 1e6 / (double)(last.ns - first.ns));
	return 0;
}
#else
int main(void)
{
	return 77;
}
#endif
