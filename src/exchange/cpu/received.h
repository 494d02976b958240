/* SPDX-License-Identifier: Apache-2.0 */
/* What a caller wants of received rows beside them, as engines' GEMMs and routers do: made of what
 * has been received. */
#ifndef TERN_EXCHANGE_CPU_RECEIVED_H
#define TERN_EXCHANGE_CPU_RECEIVED_H

#include "exchange/state.h"

static inline bool received_is_asked(const struct tern_received *r)
{
	return r->wide_ids || r->expert_counts || r->expert_totals || r->gemm_scales;
}

/* Arguments have been checked, and the rows described. */
void received_beside(const tern_moe *moe, const struct tern_received *received);

#endif
