/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TERN_BASE_PRIVATE_MEMORY_H
#define TERN_BASE_PRIVATE_MEMORY_H

#include <stdint.h>

enum private_use {
	PRIVATE_DENSE, /* from its beginning on: by huge pages where the machine grants them */
	PRIVATE_SPARSE /* here and there: few bytes come as often as many */
};

/* Address space that peers do not see; pages are taken when first written. NULL: none left. */
void *private_map(uint64_t bytes, enum private_use use);
void private_unmap(void *base, uint64_t bytes);

#endif
