/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_BASE_PRIVATE_MEMORY_H
#define TERN_BASE_PRIVATE_MEMORY_H

#include <stdint.h>

/* Address space that peers do not see; pages are taken when first written. NULL: none
 * left. */
void *private_map(uint64_t bytes);
void private_unmap(void *base, uint64_t bytes);

#endif
