/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/device/emulate/fiber.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CANARY 0x5ca1ab1e0ddba11dull
/* Stacks that all began at the same place of a page would share a few sets of each cache. */
#define NR_SHIFTS 13
#define SHIFT_BYTES 192
#define HUGE_PAGE ((size_t)2 << 20)

/* ---- ThreadSanitizer ------------------------------------------------------------------------- */

#ifdef EMULATED_TSAN
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_acquire(void *of);
void __tsan_release(void *of);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
#define NO_ORDER 1u /* a switch orders nothing: lanes of a GPU know of no switch */

static void *tsan_current(void)
{
	return __tsan_get_current_fiber();
}

static void *tsan_create(void)
{
	return __tsan_create_fiber(0);
}

static void tsan_switch(void *fiber)
{
	__tsan_switch_to_fiber(fiber, NO_ORDER);
}

void order_release(void *of)
{
	__tsan_release(of);
}

void order_acquire(void *of)
{
	__tsan_acquire(of);
}

void order_ignore(bool on)
{
	if (on)
		AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
	else
		AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
}
#else
static void *tsan_current(void)
{
	return NULL;
}

static void *tsan_create(void)
{
	return NULL;
}

static void tsan_switch(void *fiber)
{
	(void)fiber;
}

void order_release(void *of)
{
	(void)of;
}

void order_acquire(void *of)
{
	(void)of;
}

void order_ignore(bool on)
{
	(void)on;
}
#endif

/* ---- switching ------------------------------------------------------------------------------- */

#ifdef __x86_64__
void fiber_swap(void **from, void *to);
void fiber_enter(void);

/* The registers that a callee has to keep, and the stack. rbx and r12 of a new fiber: its entry and
 * argument. Not left by ret, which a processor expects to lead to where its call came from: a wrong
 * guess each time was a quarter of what an emulated kernel takes. */
__asm__(".text\n"
	".globl fiber_swap\n.hidden fiber_swap\n.type fiber_swap, @function\n"
	"fiber_swap:\n"
	"	push %rbp\n	push %rbx\n	push %r12\n	push %r13\n	push %r14\n	"
	"push %r15\n"
	"	mov %rsp, (%rdi)\n"
	"	mov %rsi, %rsp\n"
	"	pop %r15\n	pop %r14\n	pop %r13\n	pop %r12\n	pop %rbx\n	"
	"pop %rbp\n"
	"	pop %rcx\n	jmp *%rcx\n"
	".size fiber_swap, .-fiber_swap\n"
	".globl fiber_enter\n.hidden fiber_enter\n.type fiber_enter, @function\n"
	"fiber_enter:\n"
	"	mov %r12, %rdi\n"
	"	call *%rbx\n"
	"	ud2\n"
	".size fiber_enter, .-fiber_enter\n");

void fiber_start(struct fiber *f, void (*entry)(void *arg), void *arg)
{
	void **top = (void **)(f->stack + f->stack_bytes - f->shift) - 2;

	*--top = (void *)fiber_enter;
	*--top = NULL;          /* rbp */
	*--top = (void *)entry; /* rbx */
	*--top = arg;           /* r12 */
	*--top = NULL;
	*--top = NULL;
	*--top = NULL;
	f->sp = top;
}

void fiber_switch(struct fiber *from, struct fiber *to)
{
	tsan_switch(to->tsan);
	fiber_swap(&from->sp, to->sp);
}
#else
#include <ucontext.h>

static void enter(unsigned entry_high, unsigned entry_low, unsigned arg_high, unsigned arg_low)
{
	void (*entry)(void *) = (void (*)(void *))((uintptr_t)entry_high << 32 | entry_low);

	entry((void *)((uintptr_t)arg_high << 32 | arg_low));
}

/* The context lies at the stack's beginning, above the canary. */
void fiber_start(struct fiber *f, void (*entry)(void *arg), void *arg)
{
	ucontext_t *context = (ucontext_t *)(f->stack + 64);
	uintptr_t e = (uintptr_t)entry, a = (uintptr_t)arg;

	getcontext(context);
	context->uc_stack.ss_sp = f->stack + 64 + sizeof(*context);
	context->uc_stack.ss_size = f->stack_bytes - 64 - sizeof(*context);
	makecontext(context, (void (*)(void))enter, 4, (unsigned)(e >> 32), (unsigned)e,
		(unsigned)(a >> 32), (unsigned)a);
	f->sp = context;
}

void fiber_switch(struct fiber *from, struct fiber *to)
{
	ucontext_t here;

	if (!from->stack)
		from->sp = &here;
	tsan_switch(to->tsan);
	swapcontext(from->sp, to->sp);
}
#endif

/* ---- stacks ---------------------------------------------------------------------------------- */

/* Thousands of stacks, a page or two of each in use: by huge pages, or finding them takes as long
 * as what lanes do. */
static uint8_t *take_stack(unsigned bytes)
{
	static uint8_t *at, *end;
	uint8_t *stack;

	if (end - at < (ptrdiff_t)bytes) {
		uint8_t *some = mmap(NULL, 2 * HUGE_PAGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (some == MAP_FAILED)
			return NULL;
		at = (uint8_t *)(((uintptr_t)some + HUGE_PAGE - 1) & -(uintptr_t)HUGE_PAGE);
		end = at + HUGE_PAGE;
		(void)madvise(at, HUGE_PAGE, MADV_HUGEPAGE);
	}
	stack = at;
	at += bytes;
	return stack;
}

int fiber_create(struct fiber *f, unsigned stack_bytes)
{
	static unsigned nr;

	memset(f, 0, sizeof(*f));
	f->stack = take_stack(stack_bytes);
	if (!f->stack)
		return -1;
	f->stack_bytes = stack_bytes;
	f->shift = nr++ % NR_SHIFTS * SHIFT_BYTES;
	*(uint64_t *)f->stack = CANARY;
	f->tsan = tsan_create();
	return 0;
}

void fiber_adopt(struct fiber *f)
{
	memset(f, 0, sizeof(*f));
	f->tsan = tsan_current();
}

int fiber_overrun(const struct fiber *f)
{
	return *(const uint64_t *)f->stack != CANARY;
}
