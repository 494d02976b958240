/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/emulate/seeded.h"
#include "gpu/host/ops.h"

#include <dlfcn.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static sem_t driven; /* once for each rank that waits */

bool seeded_open(struct seeded *s, int nr_devices)
{
	const char *path = getenv("TERN_CUDA_LIBRARY");
	void *library;
	int nr = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	sem_init(&driven, 0, 0);
	s->ops = bench_device_ops_load();
	library = s->ops && path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
	s->reseed = library ? (void (*)(uint64_t))dlsym(library, "emulated_reseed") : NULL;
	s->history = library ? (uint64_t(*)(void))dlsym(library, "emulated_history") : NULL;
	if (s->reseed && s->history && !device_ops_load()->nr_devices(&nr) && nr >= nr_devices)
		return true;
	printf("TERN_CUDA_LIBRARY names no emulated GPUs, or fewer than %d\n", nr_devices);
	return false;
}

void seeded_drive(struct rank *rank, void (*drive)(struct rank *rank, void *ctx), void *ctx)
{
	if (rank->rank) {
		while (sem_wait(&driven))
			;
		return;
	}
	drive(rank, ctx);
	for (int r = 1; r < rank->nr_ranks; r++)
		sem_post(&driven);
}

int seeded_cases(const char *name, uint64_t cases, int (*is_bad)(uint64_t seed))
{
	uint64_t seed = devices_setting("TERN_TEST_SEED", 1),
		 seconds = devices_setting("TERN_TEST_SECONDS", 0), done = 0;
	time_t end = time(NULL) + (time_t)seconds;
	int bad = 0;

	cases = devices_setting("TERN_TEST_CASES", cases);
	for (; !bad && (seconds ? time(NULL) < end : done < cases); done++)
		bad = is_bad(seed + done);
	if (bad)
		printf("repeat: TERN_TEST_SEED=%llu TERN_TEST_CASES=1, and the same "
		       "TERN_TEST_ROUNDS and TERN_EMULATED_...\n",
			(unsigned long long)(seed + done - 1));
	printf("# seeds %llu to %llu\n%s - %s\n", (unsigned long long)seed,
		(unsigned long long)(seed + done - 1), bad ? "not ok" : "ok", name);
	return bad;
}
