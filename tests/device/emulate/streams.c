/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: what is put on them runs in order; and the thread that waits for one runs all devices.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device/emulate/inside.h"

#define TURNS 64            /* between looks at who else wants in */
#define IDLE_REST_NS 200000 /* at first, and the longer, the longer nothing happens */
#define LONGEST_REST_NS 2000000

struct emulated_device emulated_devices[MAX_DEVICES];

static bool executing, changed;
static struct emulated_stream *streams;

/* ---- one at a time, in the order in which they come ------------------------------------------ */

#define NR_QUEUES 64

/* Many ranks wait; who is let in is woken, and nobody else. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t served[NR_QUEUES] = {[0 ... NR_QUEUES - 1] = PTHREAD_COND_INITIALIZER};
static uint64_t nr_tickets, serving = 1; /* who has ticket `serving` is inside */

static void take_ticket(void)
{
	uint64_t mine = ++nr_tickets;

	while (serving != mine)
		pthread_cond_wait(&served[mine % NR_QUEUES], &lock);
}

static void give_ticket(void)
{
	pthread_cond_broadcast(&served[++serving % NR_QUEUES]);
}

void emulated_enter(void)
{
	pthread_mutex_lock(&lock);
	take_ticket();
	pthread_mutex_unlock(&lock);
	emulated_one_thread();
}

void emulated_leave(void)
{
	pthread_mutex_lock(&lock);
	give_ticket();
	pthread_mutex_unlock(&lock);
}

static void let_others_in(void)
{
	pthread_mutex_lock(&lock);
	if (serving != nr_tickets) {
		give_ticket();
		take_ticket();
	}
	pthread_mutex_unlock(&lock);
}

/* Where devices only poll it is another thread or process that they wait for, and it wants this
 * processor. */
static void rest_outside(uint32_t before)
{
	long ns = IDLE_REST_NS + IDLE_REST_NS / 32 * (long)before;
	struct timespec rest = {.tv_nsec = ns < LONGEST_REST_NS ? ns : LONGEST_REST_NS};

	emulated_leave();
	nanosleep(&rest, NULL);
	emulated_enter();
}

/* Who waits outside, while another thread runs the devices. */
struct waiter {
	const struct emulated_stream *stream; /* NULL: all of the device */
	int device;
	bool woken;
	pthread_cond_t wake;
	struct waiter *next;
};

static struct waiter *waiters;

static void wake(struct waiter *w)
{
	w->woken = true;
	pthread_cond_signal(&w->wake);
}

/* What they wait for is there. */
static void stream_is_empty(const struct emulated_stream *stream)
{
	pthread_mutex_lock(&lock);
	for (struct waiter *w = waiters; w; w = w->next)
		if (w->stream ? w->stream == stream : w->device == stream->device)
			wake(w);
	pthread_mutex_unlock(&lock);
}

/* Somebody else runs the devices from here on; who finds nothing to wait for wakes the next. */
static void pass_devices_on(void)
{
	struct waiter *w;

	pthread_mutex_lock(&lock);
	for (w = waiters; w && w->woken; w = w->next)
		;
	if (w)
		wake(w);
	pthread_mutex_unlock(&lock);
}

/* Leaves until it is woken, and enters again. */
static void wait_outside(const struct emulated_stream *stream, int device)
{
	struct waiter w = {.stream = stream, .device = device, .wake = PTHREAD_COND_INITIALIZER};
	struct waiter **at = &waiters;

	pthread_mutex_lock(&lock);
	while (*at)
		at = &(*at)->next;
	*at = &w;
	give_ticket();
	while (!w.woken)
		pthread_cond_wait(&w.wake, &lock);
	for (at = &waiters; *at != &w; at = &(*at)->next)
		;
	*at = w.next;
	take_ticket();
	pthread_mutex_unlock(&lock);
}

static pthread_t first;
static bool known, several;

bool emulated_one_thread(void)
{
	several |= known && !pthread_equal(first, pthread_self());
	first = known ? first : pthread_self();
	known = true;
	return !several;
}

void emulated_reseed(uint64_t seed)
{
	emulated_enter();
	known = several = false;
	random_reset(seed);
	warps_reset();
	emulated_leave();
}

/* ---- what streams hold ----------------------------------------------------------------------- */

void event_drop(struct emulated_event *event)
{
	if (event && --event->refs == 0)
		free(event);
}

void operation_free(struct operation *op)
{
	event_drop(op->event);
	free(op->call);
	free(op);
}

struct emulated_stream *stream_of(cudaStream_t stream)
{
	int device = 0;

	if (stream)
		return stream;
	cudaGetDevice(&device);
	return &emulated_devices[device].stream;
}

void stream_add(struct emulated_stream *stream)
{
	struct emulated_stream **at = &streams;

	while (*at && (*at)->device < stream->device) /* whichever thread was first */
		at = &(*at)->next;
	stream->end = &stream->first;
	stream->next = *at;
	*at = stream;
}

void stream_remove(struct emulated_stream *stream)
{
	struct emulated_stream **at = &streams;
	struct emulated_lane *lane;

	while (*at != stream)
		at = &(*at)->next;
	*at = stream->next;
	while ((lane = stream->free_lanes)) {
		stream->free_lanes = lane->next_free;
		lane_spare(lane);
	}
}

/* On all streams that it has come to. */
void capture_end(struct emulated_graph *graph)
{
	for (struct emulated_stream *s = streams; s; s = s->next)
		if (s->capture == graph)
			s->capture = NULL;
}

static struct operation *copy_of(const struct operation *op)
{
	struct operation *copy = malloc(sizeof(*copy));

	if (!copy)
		emulated_die("no memory for a stream");
	*copy = *op;
	copy->next = NULL;
	if (op->event)
		op->event->refs++;
	if (op->call_bytes) {
		copy->call = aligned_alloc(64, (op->call_bytes + 63) / 64 * 64);
		if (!copy->call)
			emulated_die("no memory for a launch");
		memcpy(copy->call, op->call, op->call_bytes);
	}
	return copy;
}

/* Under the lock. While the stream is captured, into its graph. */
void stream_put(struct emulated_stream *stream, const struct operation *op)
{
	struct operation *copy = copy_of(op);

	copy->stream = stream;
	order_release(&copy->put);
	if (stream->capture) {
		*stream->capture->end = copy;
		stream->capture->end = &copy->next;
		return;
	}
	if (copy->kind == OPERATION_EVENT)
		copy->event->nr_put++;
	else if (copy->kind == OPERATION_FOLLOW)
		copy->number = copy->event->nr_put;
	*stream->end = copy;
	stream->end = &copy->next;
	changed = true;
	emulated_moves();
	order_release(&stream->order);
}

/* ---- what runs ------------------------------------------------------------------------------- */

static void launch(struct operation *op)
{
	struct operation **at = &emulated_devices[op->stream->device].launches;

	op->launched = true;
	while (*at)
		at = &(*at)->next_launch;
	*at = op;
}

/* Blocks of the first launch, as many as there is room for; then those of the next. */
static void start_blocks(struct emulated_device *device)
{
	struct operation *op;

	while ((op = device->launches) && device->room) {
		device->room--;
		block_start(op, op->nr_started++);
		if (op->nr_started == op->nr_blocks)
			device->launches = op->next_launch;
	}
}

static void reach(struct emulated_event *event)
{
	event->nr_reached++;
	event->ns = emulated_clock_ns;
	order_release(&event->order);
	changed = true; /* for streams that wait for it */
}

static void run_at_once(struct operation *op)
{
	if (op->kind == OPERATION_FOLLOW && (int32_t)(op->event->nr_reached - op->number) < 0)
		return;
	order_acquire(&op->stream->order);
	if (op->kind == OPERATION_COPY)
		memmove(op->to, op->from, op->bytes);
	else if (op->kind == OPERATION_FILL)
		memset(op->to, op->byte, op->bytes);
	else if (op->kind == OPERATION_EVENT)
		reach(op->event);
	else
		order_acquire(&op->event->order);
	order_release(&op->stream->order);
	op->done = true;
}

static void advance(struct emulated_stream *stream)
{
	struct operation *op;

	while ((op = stream->first)) {
		if (op->kind != OPERATION_KERNEL)
			run_at_once(op);
		else if (!op->launched)
			launch(op);
		if (!op->done)
			break;
		stream->first = op->next;
		operation_free(op);
		if (!stream->first) {
			stream->end = &stream->first;
			stream_is_empty(stream);
		}
	}
	/* Programmatic dependent launch. */
	for (; op && op->launched && op->nr_let == op->nr_blocks && op->next; op = op->next)
		if (op->next->kind == OPERATION_KERNEL && op->next->early && !op->next->launched)
			launch(op->next);
}

void block_lets_next(struct operation *op)
{
	if (++op->nr_let == op->nr_blocks)
		changed = true;
}

void block_ended(struct emulated_block *block)
{
	struct operation *op = block->launch;
	struct emulated_stream *stream = op->stream;

	order_acquire(&stream->order);
	stores_without_block(block);
	copies_without_block(block);
	for (uint32_t i = 0; i < block->nr_lanes; i++) {
		struct emulated_lane *lane = block->warps[i / WARP_LANES].lanes[i % WARP_LANES];

		lane->next_free = stream->free_lanes;
		stream->free_lanes = lane;
	}
	if (!block->has_let)
		block_lets_next(op);
	free(block->warps);
	shared_give(block->shared, op->shared_bytes);
	free(block);
	emulated_devices[stream->device].room++;
	emulated_moves();
	changed = true;
	if (++op->nr_ended < op->nr_blocks)
		return;
	copies_of_kernel(op);
	stores_of_kernel(op);
	op->done = true;
}

static bool run_some(void)
{
	bool moves = false;

	for (uint32_t i = 0; i < TURNS; i++) {
		if (changed) {
			changed = false;
			for (struct emulated_stream *s = streams; s; s = s->next)
				advance(s);
			for (uint32_t d = 0; d < emulated_settings()->nr_devices; d++)
				start_blocks(&emulated_devices[d]);
			moves = true;
		}
		if (!warps_turn())
			break;
		moves = true;
	}
	return moves;
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* stream NULL: all of the device. */
static bool is_idle(const struct emulated_stream *stream, int device)
{
	if (stream)
		return !stream->first;
	for (struct emulated_stream *s = streams; s; s = s->next)
		if (s->device == device && s->first)
			return false;
	return true;
}

static bool run_devices(void)
{
	bool idle;

	executing = true;
	processes_enter();
	if (!run_some())
		emulated_die("nothing can run, and a stream is not empty");
	idle = warps_idle() && (processes_several() || !emulated_one_thread());
	processes_leave();
	let_others_in();
	executing = false;
	return idle;
}

void devices_run(void)
{
	if (!executing)
		run_devices();
	pass_devices_on();
}

static void run_until_idle(struct emulated_stream *stream, int device)
{
	uint32_t rests = 0; /* in a row */

	while (!is_idle(stream, device)) {
		if (executing)
			wait_outside(stream, device);
		else if (run_devices())
			rest_outside(rests++);
		else
			rests = 0;
	}
	pass_devices_on();
}

void stream_wait(struct emulated_stream *stream)
{
	run_until_idle(stream, stream->device);
	order_acquire(&stream->order);
}

void device_wait(int device)
{
	run_until_idle(NULL, device);
	for (struct emulated_stream *s = streams; s; s = s->next)
		if (s->device == device)
			order_acquire(&s->order);
}
