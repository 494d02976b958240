/* SPDX-License-Identifier: Apache-2.0 */
/* Stacks of their own, and going from one to another. */
#ifndef TERN_TESTS_DEVICE_EMULATE_FIBER_H
#define TERN_TESTS_DEVICE_EMULATE_FIBER_H

#include <stdbool.h>
#include <stddef.h>

struct fiber {
	void *sp;   /* where it was left; with ucontext: its context */
	void *tsan; /* what ThreadSanitizer takes for a thread */
	unsigned char *stack;
	unsigned stack_bytes, shift;
};

/* 0, or -1: no memory. Fibers are used again, and not given back. */
int fiber_create(struct fiber *fiber, unsigned stack_bytes);

/* entry(arg) runs when the fiber is next switched to; it may not return. */
void fiber_start(struct fiber *fiber, void (*entry)(void *arg), void *arg);
void fiber_switch(struct fiber *from, struct fiber *to);
/* For the fiber that a thread has from the beginning. */
void fiber_adopt(struct fiber *fiber);
/* Has its stack been too small? */
int fiber_overrun(const struct fiber *fiber);

/* For ThreadSanitizer, which does not know what orders lanes: all before a release of `of` happens
 * before all after a later acquire. */
void order_release(void *of);
void order_acquire(void *of);
void order_ignore(bool on); /* what this thread stores meanwhile is nobody's: it makes no race, and
			       orders nothing */

#endif
