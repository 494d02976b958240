/* SPDX-License-Identifier: Apache-2.0 */
#include "soak/coroutine.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "soak/fiber.h"

struct coroutine {
	ucontext_t inside, outside;
	void (*body)(void *ctx);
	void *ctx;
	unsigned char *memory; /* a guard page, then the stack */
	size_t memory_bytes, guard_bytes;
	bool ended;
	/* For the sanitizer. */
	void *kept_inside, *kept_outside;
	const void *outside_bottom;
	size_t outside_bytes;
};

/* makecontext passes ints; a pointer takes two. */
static void begin(unsigned int high, unsigned int low)
{
	struct coroutine *c = (struct coroutine *)((uintptr_t)high << 32 | low);

	fiber_enter(NULL, &c->outside_bottom, &c->outside_bytes);
	c->body(c->ctx);
	c->ended = true;
	fiber_leave(NULL, c->outside_bottom, c->outside_bytes);
	swapcontext(&c->inside, &c->outside);
}

static void prepare(struct coroutine *c)
{
	getcontext(&c->inside);
	c->inside.uc_stack.ss_sp = c->memory + c->guard_bytes;
	c->inside.uc_stack.ss_size = c->memory_bytes - c->guard_bytes;
	c->inside.uc_link = NULL;
	makecontext(&c->inside, (void (*)(void))begin, 2, (unsigned int)((uintptr_t)c >> 32),
		(unsigned int)(uintptr_t)c);
}

struct coroutine *coroutine_create(size_t stack_bytes, void (*body)(void *ctx), void *ctx)
{
	struct coroutine *c = calloc(1, sizeof(*c));
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	if (!c)
		return NULL;
	c->body = body;
	c->ctx = ctx;
	c->guard_bytes = page;
	c->memory_bytes = (stack_bytes + page - 1) / page * page + page;
	c->memory = mmap(NULL, c->memory_bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (c->memory == MAP_FAILED) {
		free(c);
		return NULL;
	}
	mprotect(c->memory, page, PROT_NONE);
	prepare(c);
	return c;
}

void coroutine_destroy(struct coroutine *c)
{
	if (!c)
		return;
	munmap(c->memory, c->memory_bytes);
	free(c);
}

void coroutine_resume(struct coroutine *c)
{
	fiber_leave(&c->kept_outside, c->memory + c->guard_bytes, c->memory_bytes - c->guard_bytes);
	swapcontext(&c->outside, &c->inside);
	fiber_enter(c->kept_outside, NULL, NULL);
}

void coroutine_yield(struct coroutine *c)
{
	fiber_leave(&c->kept_inside, c->outside_bottom, c->outside_bytes);
	swapcontext(&c->inside, &c->outside);
	fiber_enter(c->kept_inside, &c->outside_bottom, &c->outside_bytes);
}

bool coroutine_has_ended(const struct coroutine *c)
{
	return c->ended;
}
