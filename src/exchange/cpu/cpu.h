/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges whose halves run on the CPU. */
#ifndef TERN_EXCHANGE_CPU_CPU_H
#define TERN_EXCHANGE_CPU_CPU_H

#include "exchange/ops.h"

extern const struct exchange_ops exchange_cpu_ops;

#endif
