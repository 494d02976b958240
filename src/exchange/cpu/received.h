/* SPDX-License-Identifier: Apache-2.0 */
/* What a caller wants of received rows beside them, as engines' GEMMs and routers do: made of what
 * has been received. */
#ifndef TERN_EXCHANGE_CPU_RECEIVED_H
#define TERN_EXCHANGE_CPU_RECEIVED_H

#include "exchange/state.h"

/* Arguments have been checked, and the rows described. */
void received_beside(const tern_moe *moe, const struct tern_received *received);

#endif
