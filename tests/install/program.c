/* SPDX-License-Identifier: Apache-2.0 */
/* A user's program: built against an installed tern, as C and as C++. One rank dispatches to itself
 * and combines. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tern.h>
#include <tern_engine.h>

enum {
	HIDDEN = 8,
	TOKENS = 3
};

static float x[TOKENS * HIDDEN] __attribute__((aligned(16))),
	out[TOKENS * HIDDEN] __attribute__((aligned(16)));

static int go(const char *what, int rc)
{
	if (rc)
		fprintf(stderr, "%s: %s (%s)\n", what, tern_last_error(), tern_strerror(rc));
	return rc;
}

static int round_trip(tern_moe *moe)
{
	static const int32_t ids[TOKENS * 2] = {0, 1, 3, -1, 2, 0};
	struct tern_dispatch dispatch = {};
	struct tern_received received = {};
	struct tern_combine combine = {};
	int rc;

#ifndef __cplusplus
	dispatch.size = sizeof(dispatch);
	received.size = sizeof(received);
	combine.size = sizeof(combine);
#endif
	dispatch.nr_tokens = TOKENS;
	dispatch.x = x;
	dispatch.topk_ids = ids;
	rc = go("dispatch", tern_dispatch(moe, &dispatch, &received));
	combine.y = received.x;
	rc = rc ? rc : go("combine", tern_combine(moe, &combine, out, 0));
	for (int i = 0; i < TOKENS * HIDDEN && !rc; i++)
		if (out[i] != x[i] * (i / HIDDEN == 1 ? 1.0f : 2.0f)) {
			fprintf(stderr, "out[%d] is %g for %g\n", i, (double)out[i], (double)x[i]);
			rc = 1;
		}
	return rc;
}

#ifdef __cplusplus
template <typename T> static bool has_size()
{
	return T{}.size == sizeof(T);
}

/* Of what the engine takes; the others are used below. */
static bool have_sizes()
{
	return has_size<struct tern_engine_stats>() && has_size<struct tern_write>() &&
	       has_size<struct tern_paged_write>() && has_size<struct tern_scatter>() &&
	       has_size<struct tern_expect>() && has_size<struct tern_barrier>() &&
	       has_size<struct tern_send>();
}
#endif

static int figures(const tern_moe *moe)
{
	struct tern_memory memory = {};
	struct tern_stats stats = {};
	struct tern_wait_report report = {};
#ifdef __cplusplus
	if (!have_sizes())
		return 1;
#else
	memory.size = sizeof(memory);
	stats.size = sizeof(stats);
	report.size = sizeof(report);
#endif
	return go("memory", tern_moe_memory(moe, &memory)) ||
	       go("stats", tern_moe_stats(moe, &stats)) ||
	       go("report", tern_moe_wait_report(moe, &report)) || stats.rounds != 1;
}

int main(void)
{
	struct tern_group_config group_config;
	struct tern_moe_config config;
	tern_group *group = NULL;
	tern_moe *moe = NULL;
	char version[32];
	int rc;

	snprintf(version, sizeof(version), "%d.%d.%d", TERN_VERSION_MAJOR, TERN_VERSION_MINOR,
		TERN_VERSION_PATCH);
	if (strcmp(version, tern_version())) {
		fprintf(stderr, "header %s, library %s\n", version, tern_version());
		return 1;
	}
	for (int i = 0; i < TOKENS * HIDDEN; i++)
		x[i] = (float)(i - 7);
	tern_group_config_init(&group_config);
	rc = go("boot", tern_boot_self(&group_config.boot));
	rc = rc ? rc : go("group", tern_group_create(&group_config, &group));
	tern_moe_config_init(&config);
	config.hidden = HIDDEN;
	config.nr_experts = 4;
	config.topk = 2;
	config.max_tokens = TOKENS;
	config.x_dtype = config.dispatch_dtype = config.combine_dtype = TERN_FP32;
	rc = rc ? rc : go("exchange", tern_moe_create(group, &config, &moe));
	rc = rc ? rc : round_trip(moe);
	rc = rc ? rc : figures(moe);
	tern_moe_destroy(moe);
	tern_group_destroy(group);
	return rc ? 1 : 0;
}
