/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/elastic_steps.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exchange/state.h"
#include "gpu/host/inside.h"
#include "tests/faults/acts.h"

static const struct device_ops *untimed;
double step_ms[NR_STEPS];
unsigned nr_steps[NR_STEPS];

static int timed(enum step step, unsigned long long began_ns, int rc)
{
	step_ms[step] += (double)(now_ns() - began_ns) / 1e6;
	nr_steps[step]++;
	return rc;
}

static int timed_quiesce(const struct device_exchange *x)
{
	unsigned long long began_ns = now_ns();

	return timed(QUIESCE, began_ns, untimed->quiesce(x));
}

static int timed_renew(struct device_window *window)
{
	unsigned long long began_ns = now_ns();

	return timed(RENEW, began_ns, untimed->window_renew(window));
}

static int timed_reopen(struct device_window *window)
{
	unsigned long long began_ns = now_ns();

	return timed(REOPEN, began_ns, untimed->window_reopen(window));
}

static int timed_resume(struct device_exchange *x, const struct device_view *view)
{
	unsigned long long began_ns = now_ns();

	return timed(RESUME, began_ns, untimed->resume(x, view));
}

void time_steps(tern_moe *moe)
{
	static struct device_ops ops;

	untimed = moe->device->ops;
	ops = *untimed;
	ops.quiesce = timed_quiesce;
	ops.window_renew = timed_renew;
	ops.window_reopen = timed_reopen;
	ops.resume = timed_resume;
	moe->device->ops = &ops;
}

unsigned calls_that_manage_memory(void)
{
	static unsigned (*all)(void);
	char path[512];
	void *library;

	if (!all && getenv("TERN_EMULATED_PROCESSES")) {
		const char *name = getenv("TERN_CUDA_LIBRARY"), *end = strrchr(name, '/');

		snprintf(path, sizeof(path), "%.*s/libtern_emulated.so", (int)(end - name), name);
		library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
		all = library ? (unsigned (*)(void))dlsym(library, "emulated_memory_calls") : NULL;
		if (!all)
			abort();
	}
	return all ? all() : nr_steps[RENEW] + nr_steps[REOPEN];
}
