/* SPDX-License-Identifier: Apache-2.0 */
/* What pmix.c and pmix_rendezvous.c share. */
#ifndef TERN_GROUP_BOOT_PMIX_INSIDE_H
#define TERN_GROUP_BOOT_PMIX_INSIDE_H

#include <pmix.h>
#include <pthread.h>
#include <stdbool.h>

#define PMIX_LIBRARY "libpmix.so.2"

/* Something under way. Shared by the caller and PMIx's progress thread; who leaves last frees it,
 * for the callback may come after the time-out. */
struct pmix_pending {
	pthread_mutex_t lock;
	pthread_cond_t done_cond;
	bool done;
	int nr_users;
	pmix_status_t status;
};

/* NULL: no memory. */
struct pmix_pending *pmix_pending_new(void);
/* PMIx's callback; also of the caller, when PMIx will not call back. */
void pmix_pending_done(pmix_status_t status, void *pending);
/* true: completed, with *status. */
bool pmix_pending_wait(struct pmix_pending *pending, int wait_ms, pmix_status_t *status);

pmix_info_t pmix_info_timeout(int wait_ms);

int pmix_load(void **library);
/* *function is one's own pointer to it. */
int pmix_load_symbol(void *library, const char *name, void *function);

#endif
