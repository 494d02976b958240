/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded into a program, as tools load theirs (LD_PRELOAD): a thread of its own, which blocks no
 * signal and waits. */
#include <pthread.h>
#include <unistd.h>

static void *wait_for_nothing(void *nothing)
{
	for (;;)
		pause();
	return nothing;
}

static __attribute__((constructor)) void start(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, wait_for_nothing, NULL);
}
