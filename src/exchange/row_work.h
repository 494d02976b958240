/* SPDX-License-Identifier: Apache-2.0 */
/* Who does what halves say is to be done to rows (row_op.h). With one thread each op is done at
 * once. With several they lie in a ring, from which threads of the exchange, or the caller's
 * parallel_for, take one after the other, in any order; the thread that calls takes what is left
 * when it has to have them done, which is before what they made is announced to anybody, or sent,
 * and before a half returns. */
#ifndef TERN_EXCHANGE_ROW_WORK_H
#define TERN_EXCHANGE_ROW_WORK_H

#include "exchange/row_op.h"

#define MAX_THREADS 256 /* of a rank */

struct row_work;

/* threads: of the config, with defaults filled in. *private_bytes grows by what was taken. */
int row_work_open(const struct tern_moe_config *config, uint32_t payload_bytes,
	uint32_t scales_bytes, uint64_t *private_bytes, struct row_work **work);
void row_work_close(struct row_work *work);

/* The next op is filled in here, and then told. What it reads must not be what another makes that
 * is not finished. */
struct row_op *row_work_next(struct row_work *work);
void row_work_tell(struct row_work *work);

/* All that was told is done, and was before whatever this thread stores from now on. */
void row_work_finish(struct row_work *work);

#endif
