/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a network works, by using it. */
#ifndef TERN_CLI_DOCTOR_TRY_H
#define TERN_CLI_DOCTOR_TRY_H

#include <stddef.h>

#include "transport/transport.h"

/* Opens the transport, registers memory, connects this process with itself and writes some bytes
 * there, with an immediate. 0, or negative with the cause in `text`; takes two seconds at most once
 * the network is open. */
int doctor_try(const struct transport_ops *ops, const char *provider, char *text, size_t room);

#endif
