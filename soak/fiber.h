/* SPDX-License-Identifier: Apache-2.0 */
/* AddressSanitizer keeps a picture of the stack; it is told when another stack is switched to.
 * Without it, nothing. */
#ifndef TERN_SOAK_FIBER_H
#define TERN_SOAK_FIBER_H

#include <stddef.h>

#ifndef __has_feature
#define __has_feature(feature) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#include <sanitizer/common_interface_defs.h>

/* Before a switch to the stack [bottom, bottom + bytes). *keep: what the sanitizer has to be given
 * when this stack goes on; NULL when it never does. */
static inline void fiber_leave(void **keep, const void *bottom, size_t bytes)
{
	__sanitizer_start_switch_fiber(keep, bottom, bytes);
}

/* After it, on the new stack: what was kept of it, and whose stack it was that was left. */
static inline void fiber_enter(void *kept, const void **bottom, size_t *bytes)
{
	__sanitizer_finish_switch_fiber(kept, bottom, bytes);
}
#else
static inline void fiber_leave(void **keep, const void *bottom, size_t bytes)
{
	(void)keep;
	(void)bottom;
	(void)bytes;
}

static inline void fiber_enter(void *kept, const void **bottom, size_t *bytes)
{
	(void)kept;
	(void)bottom;
	(void)bytes;
}
#endif

#endif
