/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_EXCHANGE_CPU_DISPATCH_LL_H
#define TERN_EXCHANGE_CPU_DISPATCH_LL_H

#include "exchange/state.h"

/* Low latency: everything to everybody. */
int dispatch_send_ll(tern_moe *moe, const struct tern_dispatch *args);

#endif
