/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of pages. They find what a network, a memory or a mistake has changed; they do not stop
 * somebody who wants to deceive. Any change of one word of 8 bytes is found for certain, any other
 * but for one in 2^64. */
#ifndef TERN_WEIGHTS_SUM_H
#define TERN_WEIGHTS_SUM_H

#include <stdint.h>

uint64_t weights_sum(const void *data, uint64_t bytes);

#endif
