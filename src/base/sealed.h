/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_BASE_SEALED_H
#define TERN_BASE_SEALED_H

#include <stdint.h>

/* A descriptor of `bytes` zeroed bytes of memory without a name, which can be mapped shared. The
 * size is sealed, so that no peer can shrink it under another's feet (which would be SIGBUS there).
 * `name` is for people that look at mappings. */
int sealed_memory(const char *name, uint64_t bytes, int *fd);

#endif
