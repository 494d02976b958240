/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that can stop in the middle, each on a stack of its own: code that blocks runs
 * unchanged, many of it in one thread. There is one thread, so ThreadSanitizer has nothing to see
 * here; AddressSanitizer is told of each switch. */
#ifndef TERN_SOAK_COROUTINE_H
#define TERN_SOAK_COROUTINE_H

#include <stdbool.h>
#include <stddef.h>

struct coroutine;

/* `body` begins with the first resume. NULL: no memory. A stack that overflows hits a guard page.
 */
struct coroutine *coroutine_create(size_t stack_bytes, void (*body)(void *ctx), void *ctx);
/* Only when it has ended or never begun: what its body holds would be lost. */
void coroutine_destroy(struct coroutine *coroutine);

void coroutine_resume(struct coroutine *coroutine); /* from outside: until it yields or ends */
void coroutine_yield(struct coroutine *coroutine);  /* from inside: until it is resumed */
bool coroutine_has_ended(const struct coroutine *coroutine);

#endif
