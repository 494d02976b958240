/* SPDX-License-Identifier: Apache-2.0 */
/* What a RoCE or InfiniBand site may have to set, from the environment. */
#include "transport/verbs/verbs.h"

#include <stdlib.h>
#include <string.h>

#include "base/environment.h"
#include "base/error.h"

static int read_post(enum verbs_post *post)
{
	const char *text = getenv("TERN_VERBS_POST");

	if (!text || !strcmp(text, "best"))
		*post = VERBS_POST_BEST;
	else if (!strcmp(text, "classic"))
		*post = VERBS_POST_CLASSIC;
	else if (!strcmp(text, "extended"))
		*post = VERBS_POST_EXTENDED;
	else
		return fail(TERN_ERR_INVALID,
			"TERN_VERBS_POST is \"%.64s\"; best, classic and extended are known", text);
	return 0;
}

static int check_mtu(int mtu)
{
	if (mtu < 0 || mtu == 256 || mtu == 512 || mtu == 1024 || mtu == 2048 || mtu == 4096)
		return 0;
	return fail(TERN_ERR_INVALID,
		"TERN_VERBS_MTU is %d; 256, 512, 1024, 2048 and 4096 are possible", mtu);
}

int verbs_settings_read(struct verbs_settings *s)
{
	int rc;

	*s = (struct verbs_settings){.port = -1,
		.gid_index = -1,
		.mtu = -1,
		.timeout = 14,
		.retry = 6, /* rxe takes 7 for "for ever" */
		.rnr_retry = 7,
		.min_rnr_timer = 12,
		.chain = VERBS_CHAIN,
		.connect_ms = 60000};
	rc = environment_number("TERN_VERBS_PORT", 1, 255, &s->port);
	rc = rc ? rc : environment_number("TERN_VERBS_GID_INDEX", 0, 255, &s->gid_index);
	rc = rc ? rc : environment_number("TERN_VERBS_MTU", 256, 4096, &s->mtu);
	rc = rc ? rc : check_mtu(s->mtu);
	rc = rc ? rc : environment_number("TERN_VERBS_TRAFFIC_CLASS", 0, 255, &s->traffic_class);
	rc = rc ? rc : environment_number("TERN_VERBS_SERVICE_LEVEL", 0, 15, &s->service_level);
	rc = rc ? rc : environment_number("TERN_VERBS_PKEY_INDEX", 0, 65535, &s->pkey_index);
	rc = rc ? rc : environment_number("TERN_VERBS_TIMEOUT", 1, 31, &s->timeout);
	rc = rc ? rc : environment_number("TERN_VERBS_RETRY", 0, 7, &s->retry);
	rc = rc ? rc : environment_number("TERN_VERBS_RNR_RETRY", 0, 7, &s->rnr_retry);
	rc = rc ? rc : environment_number("TERN_VERBS_MIN_RNR_TIMER", 0, 31, &s->min_rnr_timer);
	rc = rc ? rc
		: environment_number("TERN_VERBS_RELAXED_ORDERING", 0, 1, &s->relaxed_ordering);
	rc = rc ? rc : environment_number("TERN_VERBS_CHAIN", 1, VERBS_CHAIN, &s->chain);
	rc = rc ? rc : environment_number("TERN_VERBS_CONNECT_MS", 1, 3600000, &s->connect_ms);
	return rc ? rc : read_post(&s->post);
}
