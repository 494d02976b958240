/* SPDX-License-Identifier: Apache-2.0 */
#include "testkit/sim/inside.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define POOL_BLOCK 64 /* objects */

/* ---- pools ----------------------------------------------------------------------------------- */

static bool pool_grow(struct pool *pool)
{
	struct pool_block *block = malloc(sizeof(*block) + POOL_BLOCK * pool->bytes);
	uint8_t *object = (uint8_t *)(block + 1);
	unsigned int i;

	if (!block)
		return false;
	block->next = pool->blocks;
	pool->blocks = block;
	pool->total_bytes += sizeof(*block) + POOL_BLOCK * pool->bytes;
	for (i = 0; i < POOL_BLOCK; i++)
		sim_pool_give(pool, object + i * pool->bytes);
	return true;
}

void *sim_pool_take(struct pool *pool)
{
	void *object;

	if (!pool->free && !pool_grow(pool))
		return NULL;
	object = pool->free;
	memcpy(&pool->free, object, sizeof(void *));
	memset(object, 0, pool->bytes);
	return object;
}

void sim_pool_give(struct pool *pool, void *object)
{
	memcpy(object, &pool->free, sizeof(void *));
	pool->free = object;
}

static void pool_destroy(struct pool *pool)
{
	struct pool_block *block;

	while ((block = pool->blocks)) {
		pool->blocks = block->next;
		free(block);
	}
}

/* ---- randomness: splitmix64, in the order of events ------------------------------------------ */

static uint64_t next_random(struct sim_network *network)
{
	uint64_t z = network->random += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

uint64_t sim_random(struct sim_network *network, uint64_t below)
{
	return below < 2 ? 0 : (uint64_t)((unsigned __int128)next_random(network) * below >> 64);
}

bool sim_chance(struct sim_network *network, uint32_t per_mille)
{
	return per_mille && sim_random(network, 1000) < per_mille;
}

uint64_t sim_delay(struct sim_network *network, uint64_t most_ns)
{
	return most_ns ? sim_random(network, most_ns + 1) : 0;
}

/* ---- the heap of what will happen ------------------------------------------------------------ */

static bool is_before(const struct happening *a, const struct happening *b)
{
	return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static bool heap_room(struct sim_network *network)
{
	size_t room = network->room ? network->room * 2 : 1024;
	struct happening *heap;

	if (network->nr_happenings < network->room)
		return true;
	heap = realloc(network->heap, room * sizeof(*heap));
	if (!heap) {
		network->failed = TERN_ERR_NOMEM;
		return false;
	}
	network->heap = heap;
	network->room = room;
	return true;
}

bool sim_foresee(struct sim_network *network, uint64_t at, enum happening_kind kind, void *subject,
	uint64_t serial, uint32_t detail)
{
	struct happening new = {.at = at < network->now ? network->now : at,
		.order = network->order++,
		.subject = subject,
		.serial = serial,
		.kind = kind,
		.detail = detail};
	size_t place, above;

	if (!heap_room(network))
		return false;
	for (place = network->nr_happenings++; place; place = above) {
		above = (place - 1) / 2;
		if (!is_before(&new, &network->heap[above]))
			break;
		network->heap[place] = network->heap[above];
	}
	network->heap[place] = new;
	return true;
}

static struct happening heap_take(struct sim_network *network)
{
	struct happening *heap = network->heap, first = heap[0],
			 last = heap[--network->nr_happenings];
	size_t place = 0, below, nr = network->nr_happenings;

	while ((below = 2 * place + 1) < nr) {
		if (below + 1 < nr && is_before(&heap[below + 1], &heap[below]))
			below++;
		if (!is_before(&heap[below], &last))
			break;
		heap[place] = heap[below];
		place = below;
	}
	heap[place] = last;
	return first;
}

/* ---- who has something to do ----------------------------------------------------------------- */

void sim_endpoint_ready(struct endpoint *endpoint)
{
	struct sim_network *network = endpoint->network;

	if (endpoint->ready)
		return;
	endpoint->ready = true;
	endpoint->next_ready = NULL;
	if (network->last_ready)
		network->last_ready->next_ready = endpoint;
	else
		network->ready = endpoint;
	network->last_ready = endpoint;
}

bool sim_take_ready(struct sim_network *network, uint32_t *rank)
{
	struct endpoint *endpoint = network->ready;

	if (!endpoint)
		return false;
	network->ready = endpoint->next_ready;
	if (!network->ready)
		network->last_ready = NULL;
	endpoint->ready = false;
	*rank = endpoint->rank;
	return true;
}

void sim_endpoint_wake(struct endpoint *endpoint, uint64_t at)
{
	if (endpoint->wake_ns && endpoint->wake_ns <= at)
		return;
	endpoint->wake_ns = at;
	sim_foresee(endpoint->network, at, HAPPEN_WAKE, NULL, sim_endpoint_id(endpoint), 0);
}

static void wake(struct sim_network *network, uint64_t id)
{
	struct endpoint *endpoint = sim_endpoint_find(network, id);

	if (!endpoint)
		return;
	if (endpoint->wake_ns <= network->now)
		endpoint->wake_ns = 0;
	if (endpoint->notes && endpoint->proxy_ns > network->now)
		sim_endpoint_wake(endpoint, endpoint->proxy_ns);
	sim_endpoint_ready(endpoint);
}

/* ---- time ------------------------------------------------------------------------------------ */

static void trace(struct sim_network *network, const struct happening *what)
{
	uint64_t words[4] = {what->at, what->kind, what->serial, what->detail};
	unsigned int i;

	for (i = 0; i < 4; i++) {
		network->hash = (network->hash ^ words[i]) * 0x9fb21c651e98df25u;
		network->hash ^= network->hash >> 32;
	}
}

static void down(struct sim_network *network, const struct happening *what)
{
	struct endpoint *endpoint = sim_endpoint_find(network, what->serial);

	if (endpoint)
		sim_wire_peer_down(endpoint, what->detail, TERN_ERR_PEER_DEAD,
			"the simulated network has lost the peer");
}

bool sim_step(struct sim_network *network)
{
	struct happening what;

	if (!network->nr_happenings || network->failed)
		return false;
	what = heap_take(network);
	network->now = what.at;
	network->stats.events++;
	trace(network, &what);
	switch (what.kind) {
	case HAPPEN_WAKE:
		wake(network, what.serial);
		break;
	case HAPPEN_DOWN:
		down(network, &what);
		break;
	case HAPPEN_KILL:
		sim_kill_now(network, what.detail);
		break;
	case HAPPEN_MESSAGE:
		sim_wire_message(network, what.subject);
		break;
	default:
		sim_wire_happen(network, &what);
	}
	return true;
}

void sim_run_until(struct sim_network *network, uint64_t ns)
{
	uint64_t next;

	while (sim_next(network, &next) && next <= ns && sim_step(network))
		;
	if (network->now < ns)
		network->now = ns;
}

bool sim_next(const struct sim_network *network, uint64_t *ns)
{
	if (!network->nr_happenings)
		return false;
	*ns = network->heap[0].at;
	return true;
}

void sim_wake_at(struct sim_network *network, uint64_t ns)
{
	sim_foresee(network, ns, HAPPEN_WAKE, NULL, 0, 0);
}

uint64_t sim_now(const struct sim_network *network)
{
	return network->now;
}

/* ---- the network itself ---------------------------------------------------------------------- */

void sim_settings_init(struct sim_settings *settings)
{
	*settings = (struct sim_settings){
		.seed = 1,
		.near = {.latency_ns = 200, .bytes_per_second = 100000000000},
		.far = {.latency_ns = 1000, .jitter_ns = 100},
		.nic = {.bytes_per_second = 25000000000},
		.depth = 4096,
		.inline_bytes = 64,
		.message_bytes = 65536,
		.write_bytes = 1u << 30,
		.piece_bytes = 4096,
		.max_pieces = 8,
		.again_ns = 100,
		.detect_ns = 10000,
	};
}

void sim_settings_foul(struct sim_settings *settings, uint64_t seed)
{
	struct sim_network dice = {.random = seed ^ 0x5eed};

	sim_settings_init(settings);
	settings->seed = seed;
	settings->far.latency_ns = 200 + sim_random(&dice, 5000);
	settings->far.jitter_ns = sim_random(&dice, 20000);
	settings->nic.bytes_per_second = 1000000000 + sim_random(&dice, 49000000000);
	settings->nic.nr_queue_pairs = (uint32_t)sim_random(&dice, 5);
	settings->piece_bytes = 64 << sim_random(&dice, 7);
	settings->max_pieces = 1 + (uint32_t)sim_random(&dice, 32);
	settings->reorder_ns = sim_random(&dice, 100000);
	settings->depth = 1 + (uint32_t)sim_random(&dice, 256);
	settings->again_per_mille = (uint32_t)sim_random(&dice, 300);
	settings->again_first = (uint32_t)sim_random(&dice, 3);
	settings->duplicate_per_mille = (uint32_t)sim_random(&dice, 200);
	settings->stall_per_mille = (uint32_t)sim_random(&dice, 30);
	settings->stall_ns = sim_random(&dice, 50000);
	settings->completion_jitter_ns = sim_random(&dice, 30000);
	settings->connect_ns = sim_random(&dice, 20000);
	settings->poison = true;
}

static int check_settings(const struct sim_settings *settings)
{
	if (!settings->depth || !settings->message_bytes || !settings->write_bytes ||
		!settings->piece_bytes)
		return fail(TERN_ERR_INVALID, "simulated network: depth, message_bytes, "
					      "write_bytes and piece_bytes must not be 0");
	if (settings->write_bytes > 1u << 30)
		return fail(TERN_ERR_INVALID,
			"simulated network: write_bytes is %llu, most is 1 GiB",
			(unsigned long long)settings->write_bytes);
	if (!settings->max_pieces || settings->max_pieces > MAX_PIECES)
		return fail(TERN_ERR_INVALID, "simulated network: max_pieces is %u, not 1 to %u",
			settings->max_pieces, MAX_PIECES);
	if (settings->inline_bytes > SIM_INLINE_BYTES)
		return fail(TERN_ERR_INVALID, "simulated network: inline_bytes is %u, most is %u",
			settings->inline_bytes, SIM_INLINE_BYTES);
	if (settings->again_per_mille >= 1000)
		return fail(TERN_ERR_INVALID,
			"simulated network: again_per_mille is %u: nothing would ever be sent",
			settings->again_per_mille);
	return 0;
}

int sim_network_create(const struct sim_settings *settings, struct sim_network **out)
{
	struct sim_network *network;
	int rc = check_settings(settings);

	if (rc)
		return rc;
	network = calloc(1, sizeof(*network));
	if (!network)
		return fail(TERN_ERR_NOMEM, "simulated network: out of memory");
	network->settings = *settings;
	network->random = settings->seed;
	network->flights.bytes = sizeof(struct flight);
	network->notes.bytes = sizeof(struct note);
	network->messages.bytes = sizeof(struct message) + POOLED_MESSAGE_BYTES;
	*out = network;
	return 0;
}

/* Messages that did not fit the pool and are still under way. */
static void free_messages(struct sim_network *network)
{
	size_t i;

	for (i = 0; i < network->nr_happenings; i++)
		if (network->heap[i].kind == HAPPEN_MESSAGE)
			sim_message_give(network, network->heap[i].subject);
}

void sim_network_destroy(struct sim_network *network)
{
	if (!network)
		return;
	free_messages(network);
	pool_destroy(&network->flights);
	pool_destroy(&network->notes);
	pool_destroy(&network->messages);
	free(network->heap);
	free(network->endpoints);
	free(network->incarnations);
	free(network->faults);
	free(network);
}

uint64_t sim_trace_hash(const struct sim_network *network)
{
	return network->hash;
}

void sim_stats(const struct sim_network *network, struct sim_stats *stats)
{
	*stats = network->stats;
	stats->pool_bytes = network->flights.total_bytes + network->notes.total_bytes +
			    network->messages.total_bytes + network->room * sizeof(*network->heap);
}
