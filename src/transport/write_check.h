/* SPDX-License-Identifier: Apache-2.0 */
/* What every transport asks of a write before it posts anything: 0, or TERN_ERR_INVALID with the
 * figures. */
#ifndef TERN_TRANSPORT_WRITE_CHECK_H
#define TERN_TRANSPORT_WRITE_CHECK_H

#include "transport/transport.h"

int write_check_bytes(const struct transport_write *w, const char *what, uint64_t most);
/* `base` and `bytes` are those of w->region. */
int write_check_source(const struct transport_write *w, const void *base, uint64_t bytes);
/* Of the peer's region, which has so many bytes, and of the one that its key tells of. */
int write_check_inside(const struct transport_write *w, uint64_t bytes);
int write_check_target(const struct transport_write *w);

#endif
