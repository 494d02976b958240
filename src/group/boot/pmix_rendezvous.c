/* SPDX-License-Identifier: Apache-2.0 */
/* A rendezvous over what PMIx publishes: its server keeps it when the process that published it has
 * ended, and a process that was started anew under the same number may replace it. PMIx is in use
 * as long as a boot of tern_boot_env is, which a group has. */
#include "group/boot/boot.h"
#include "group/boot/pmix_inside.h"
#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES 4096

struct api {
	pmix_status_t (*publish)(const pmix_info_t[], size_t, pmix_op_cbfunc_t, void *);
	pmix_status_t (*unpublish)(char **, const pmix_info_t[], size_t, pmix_op_cbfunc_t, void *);
	pmix_status_t (*lookup)(char **, const pmix_info_t[], size_t, pmix_lookup_cbfunc_t, void *);
	const char *(*error_string)(pmix_status_t);
};

/* One call. PMIx reads and writes it until it has called back: if it has not in time, it stays. */
struct asked {
	struct pmix_pending *pending;
	pmix_info_t info[2];
	char key[PMIX_MAX_KEYLEN + 1], *keys[2];
	char value[MOST_BYTES];
	size_t bytes;
};

static int load(struct api *api)
{
	void *library;
	int rc = pmix_load(&library);

	rc = rc ? rc : pmix_load_symbol(library, "PMIx_Publish_nb", &api->publish);
	rc = rc ? rc : pmix_load_symbol(library, "PMIx_Unpublish_nb", &api->unpublish);
	rc = rc ? rc : pmix_load_symbol(library, "PMIx_Lookup_nb", &api->lookup);
	return rc ? rc : pmix_load_symbol(library, "PMIx_Error_string", &api->error_string);
}

static struct asked *asked_new(const char *key)
{
	struct asked *a = calloc(1, sizeof(*a));

	if (!a || strlen(key) > PMIX_MAX_KEYLEN) {
		free(a);
		fail(TERN_ERR_INVALID, "no memory for a rendezvous, or no key: \"%.64s\"", key);
		return NULL;
	}
	snprintf(a->key, sizeof(a->key), "%s", key);
	a->keys[0] = a->key;
	a->info[0] = (pmix_info_t){
		.value = {.type = PMIX_DATA_RANGE, .data.range = PMIX_RANGE_NAMESPACE}};
	snprintf(a->info[0].key, sizeof(a->info[0].key), "%s", PMIX_RANGE);
	return a;
}

static bool begin(struct asked *a)
{
	a->pending = pmix_pending_new();
	if (!a->pending)
		fail(TERN_ERR_NOMEM, "no memory for a rendezvous");
	return a->pending;
}

/* `begun`: what the call returned. false: it is too late, and `a` is PMIx's for good. */
static bool end(struct asked *a, pmix_status_t begun, int wait_ms, pmix_status_t *status)
{
	if (begun != PMIX_SUCCESS) /* nobody will call back */
		pmix_pending_done(
			begun == PMIX_OPERATION_SUCCEEDED ? PMIX_SUCCESS : begun, a->pending);
	if (pmix_pending_wait(a->pending, wait_ms, status))
		return true;
	fail(TERN_ERR_TIMEOUT, "PMIx has not answered within %d ms, \"%s\"", wait_ms, a->key);
	return false;
}

/* ---- setting --------------------------------------------------------------------------------- */

/* What is there, this rank's or that of who was it before; there may be nothing. */
static int take_back(const struct api *api, const char *key, int wait_ms)
{
	struct asked *a = asked_new(key);
	pmix_status_t status;

	if (!a)
		return TERN_ERR_INVALID;
	if (!begin(a)) {
		free(a);
		return TERN_ERR_NOMEM;
	}
	if (!end(a, api->unpublish(a->keys, a->info, 1, pmix_pending_done, a->pending), wait_ms,
		    &status))
		return TERN_ERR_TIMEOUT;
	free(a);
	return 0;
}

static int publish(
	const struct api *api, const char *key, const void *value, size_t bytes, int wait_ms)
{
	struct asked *a = asked_new(key);
	pmix_status_t status;

	if (!a)
		return TERN_ERR_INVALID;
	if (!begin(a)) {
		free(a);
		return TERN_ERR_NOMEM;
	}
	memcpy(a->value, value, bytes);
	a->info[1] = (pmix_info_t){
		.value = {.type = PMIX_BYTE_OBJECT, .data.bo = {.bytes = a->value, .size = bytes}}};
	snprintf(a->info[1].key, sizeof(a->info[1].key), "%s", key);
	if (!end(a, api->publish(a->info, 2, pmix_pending_done, a->pending), wait_ms, &status))
		return TERN_ERR_TIMEOUT;
	free(a);
	return status == PMIX_SUCCESS
		       ? 0
		       : fail(TERN_ERR_BOOTSTRAP, "PMIx publishes no \"%s\": %s (PMIx status %d)",
				 key, api->error_string(status), status);
}

static int set(void *ctx, const char *key, const void *value, size_t bytes, int wait_ms)
{
	struct api api;
	int rc = load(&api);

	(void)ctx;
	if (!rc && bytes > MOST_BYTES)
		rc = fail(TERN_ERR_INVALID, "%zu bytes for a rendezvous; at most %d", bytes,
			MOST_BYTES);
	rc = rc ? rc : take_back(&api, key, wait_ms / 2);
	return rc ? rc : publish(&api, key, value, bytes, wait_ms - wait_ms / 2);
}

/* ---- getting --------------------------------------------------------------------------------- */

static void found(pmix_status_t status, pmix_pdata_t data[], size_t nr, void *ctx)
{
	struct asked *a = ctx;
	struct pmix_pending *pending = a->pending;
	const pmix_value_t *value = nr ? &data[0].value : NULL;

	if (status == PMIX_SUCCESS && (!value || value->type != PMIX_BYTE_OBJECT ||
					      value->data.bo.size > sizeof(a->value)))
		status = PMIX_ERR_NOT_FOUND;
	if (status == PMIX_SUCCESS) {
		a->bytes = value->data.bo.size;
		memcpy(a->value, value->data.bo.bytes, a->bytes);
	}
	pmix_pending_done(status, pending);
}

static int hand_out(const struct asked *a, void *value, size_t *bytes)
{
	if (a->bytes > *bytes)
		return fail(TERN_ERR_INVALID, "\"%s\" of the rendezvous has %zu bytes, and not %zu",
			a->key, a->bytes, *bytes);
	memcpy(value, a->value, a->bytes);
	*bytes = a->bytes;
	return 0;
}

static int get(void *ctx, const char *key, void *value, size_t *bytes, int wait_ms)
{
	struct api api;
	struct asked *a;
	pmix_status_t status;
	int rc = load(&api);

	(void)ctx;
	if (rc)
		return rc;
	a = asked_new(key);
	if (!a)
		return TERN_ERR_INVALID;
	if (!begin(a)) {
		free(a);
		return TERN_ERR_NOMEM;
	}
	if (!end(a, api.lookup(a->keys, a->info, 1, found, a), wait_ms, &status))
		return TERN_ERR_TIMEOUT;
	if (status == PMIX_ERR_NOT_FOUND)
		rc = 1;
	else if (status != PMIX_SUCCESS)
		rc = fail(TERN_ERR_BOOTSTRAP, "PMIx looks for \"%s\": %s (PMIx status %d)", key,
			api.error_string(status), status);
	else
		rc = hand_out(a, value, bytes);
	free(a);
	return rc;
}

int pmix_rendezvous(struct tern_rendezvous *rendezvous)
{
	*rendezvous = (struct tern_rendezvous){.set = set, .get = get};
	return 0;
}
