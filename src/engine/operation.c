/* SPDX-License-Identifier: Apache-2.0 */
/* Operations: given out, ended once, waited for, given back. */
#include "engine/operation.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "engine/inside.h"
#include "engine/patience.h"

#define YIELD_ROUNDS 50 /* after PATIENCE_SPINS */
#define SLEEP_SLICE_NS 50000000u

/* ---- given out and given back ---------------------------------------------------------------- */

uint32_t operation_take(tern_engine *engine, enum operation_kind kind, tern_done_fn done, void *ctx,
	bool with_handle)
{
	uint32_t number = pool_take(&engine->free_operations);
	struct operation *operation = &engine->operations[number];

	if (number == POOL_EMPTY)
		return NONE;
	atomic_store_explicit(&operation->ended, 0, memory_order_relaxed);
	operation->kind = kind;
	operation->error = 0;
	operation->done = done;
	operation->ctx = ctx;
	operation->pending = operation->puts_taken = operation->puts_pending = 0;
	operation->parked = operation->last_parked = operation->next_expecting = NONE;
	operation->cause[0] = 0;
	atomic_store_explicit(&operation->holders, with_handle ? 2 : 1, memory_order_release);
	return number;
}

tern_op operation_handle(const tern_engine *engine, uint32_t number)
{
	return (uint64_t)atomic_load_explicit(
		       &engine->operations[number].generation, memory_order_relaxed)
		       << 32 |
	       (number + 1);
}

struct operation *operation_of_handle(tern_engine *engine, tern_op op)
{
	uint32_t number = (uint32_t)op - 1;
	struct operation *operation;

	if (!engine || !(uint32_t)op || number >= engine->config.nr_operations)
		return NULL;
	operation = &engine->operations[number];
	if (atomic_load_explicit(&operation->generation, memory_order_relaxed) !=
		(uint32_t)(op >> 32))
		return NULL;
	return atomic_load_explicit(&operation->holders, memory_order_acquire) ? operation : NULL;
}

/* Acquire and release: who drops last comes after all that the other did with it. */
void operation_drop(tern_engine *engine, uint32_t number)
{
	struct operation *operation = &engine->operations[number];

	if (atomic_fetch_sub_explicit(&operation->holders, 1, memory_order_acq_rel) != 1)
		return;
	atomic_fetch_add_explicit(&operation->generation, 1, memory_order_relaxed); /* old handles
										       name nothing
										     */
	pool_give(&engine->free_operations, number);
}

/* ---- ending ---------------------------------------------------------------------------------- */

void operation_fail(struct operation *operation, int error, const char *cause)
{
	if (operation->error)
		return;
	operation->error = error;
	snprintf(operation->cause, sizeof(operation->cause), "%s", cause);
}

/* Release: error and cause, and all that the callback did, come before the end is seen. Pairs with
 * has_ended. */
static void publish_end(struct operation *operation)
{
	atomic_store_explicit(&operation->ended, 1, memory_order_release);
	wakeup_signal(&operation->wakeup);
}

static bool has_ended(const struct operation *operation)
{
	return atomic_load_explicit(&operation->ended, memory_order_acquire);
}

void operation_end(tern_engine *engine, uint32_t number)
{
	struct operation *operation = &engine->operations[number];

	engine->stats.failed += operation->error != 0;
	if (operation->done)
		operation->done(operation->ctx, operation->error, operation->cause);
	publish_end(operation);
	operation_drop(engine, number);
}

void operation_part_ended(tern_engine *engine, uint32_t number)
{
	if (--engine->operations[number].pending == 0)
		operation_end(engine, number);
}

/* Release on both sums: the operation's writes have landed and its source may be reused. Pairs with
 * engine_counter_ended. */
static void counter_add(struct engine_counter *counter, int error)
{
	int none = 0;

	if (error)
		atomic_compare_exchange_strong_explicit(
			&counter->error, &none, error, memory_order_relaxed, memory_order_relaxed);
	atomic_fetch_add_explicit(
		error ? &counter->failed : &counter->done, 1, memory_order_release);
}

struct engine_counter *counter_of(const tern_engine *engine, uint32_t completion)
{
	const struct engine_counters *counters = engine->counters[completion >> COUNTER_BITS];
	uint32_t index = completion & ((1u << COUNTER_BITS) - 1);

	return counters && index < counters->nr ? &counters->first[index] : NULL;
}

void completion_end(
	tern_engine *engine, uint32_t completion, bool counted, int error, const char *cause)
{
	if (completion == NONE) {
		engine->stats.failed += error != 0;
	} else if (counted) {
		struct engine_counter *counter = counter_of(engine, completion);

		engine->stats.failed += error != 0;
		if (counter)
			counter_add(counter, error);
	} else {
		if (error)
			operation_fail(&engine->operations[completion], error, cause);
		operation_part_ended(engine, completion);
	}
}

/* ---- waiting for an end ---------------------------------------------------------------------- */

static void sleep_for_end(struct operation *operation, uint64_t left_ns)
{
	uint32_t count = wakeup_listen(&operation->wakeup);

	if (!has_ended(operation))
		wakeup_sleep(&operation->wakeup, count,
			left_ns < SLEEP_SLICE_NS ? left_ns : SLEEP_SLICE_NS);
	wakeup_leave(&operation->wakeup);
}

/* The operation's outcome, or TERN_ERR_TIMEOUT. */
int operation_wait(tern_engine *engine, uint32_t number, uint64_t wait_ns)
{
	struct operation *operation = &engine->operations[number];
	struct patience patience = patience_for(engine, wait_ns);

	while (!has_ended(operation)) {
		uint64_t now;

		if (!patience_left(&patience)) {
			if (has_ended(operation))
				break;
			return fail(TERN_ERR_TIMEOUT,
				"the operation is still under way after %.3f ms",
				(double)wait_ns / 1e6);
		}
		now = engine_now(engine);
		if (!engine->setup.scheduler && patience.rounds > PATIENCE_SPINS + YIELD_ROUNDS &&
			now < patience.deadline_ns)
			sleep_for_end(operation, patience.deadline_ns - now);
	}
	return operation->error ? fail(operation->error, "%s", operation->cause) : 0;
}

static int unknown_handle(tern_op op)
{
	return fail(TERN_ERR_INVALID,
		"%#llx is no operation under way: its end was told before, or it is another "
		"engine's",
		(unsigned long long)op);
}

int tern_op_wait(tern_engine *engine, tern_op op, int wait_ms)
{
	struct operation *operation = operation_of_handle(engine, op);
	uint32_t number = (uint32_t)op - 1;
	int rc;

	if (!operation)
		return unknown_handle(op);
	if (wait_ms && engine_on_proxy(engine))
		return fail(TERN_ERR_STATE, "a callback of the engine may not wait for it");
	rc = operation_wait(engine, number, (uint64_t)(wait_ms > 0 ? wait_ms : 0) * 1000000);
	if (rc != TERN_ERR_TIMEOUT)
		operation_drop(engine, number);
	return rc;
}

int tern_op_poll(tern_engine *engine, tern_op op)
{
	return tern_op_wait(engine, op, 0);
}

int tern_op_forget(tern_engine *engine, tern_op op)
{
	if (!operation_of_handle(engine, op))
		return unknown_handle(op);
	operation_drop(engine, (uint32_t)op - 1);
	return 0;
}
