/* SPDX-License-Identifier: Apache-2.0 */
/* What the rest of the library may ask of an engine beyond tern_engine.h: making one without a
 * group or a thread, and the short path of the exchange. The inside is in inside.h.
 *
 *   open ─ address ─(all ranks' addresses)─ connect ─┬─ start ── the proxy thread steps ──┬─ destroy
 *                                                    └─ step, step, ... by a scheduler ──────┘
 */
#ifndef TERN_ENGINE_ENGINE_H
#define TERN_ENGINE_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/scheduler.h"
#include "tern_engine.h"
#include "transport/transport.h"

/* ---- without a group, without a thread ------------------------------------------------------- */

/* A network that leads to some of the ranks: a transport, and how it is opened. */
struct engine_network {
	const struct transport_ops *ops; /* NULL: it leads to no peer of this rank, so its NICs stay
					    closed */
	const char *provider;            /* transport_options.provider */
	void *simulated;                 /* transport_options.network */
	uint32_t nr_nics; /* the same on all ranks, also where it stays closed: NICs are numbered
			     through */
	const char *devices[TERN_MAX_NICS];
};

#define ENGINE_NETWORK_NAME 48

struct engine_setup {
	uint32_t self, nr_peers, nr_networks;
	struct engine_network networks[TERN_MAX_NICS]; /* the same ones, in the same order, on all
							  ranks; TERN_MAX_NICS NICs at most. What
							  they point to has to outlive the engine */
	const uint8_t *network_of; /* [nr_peers], read by engine_open alone: which of them leads to
				      each; NULL: the first */
	const struct scheduler *scheduler; /* no thread: the scheduler calls engine_step; its clock
					    * is that of time-outs and waits, and its idle is called
					    * by waits (for room, for completion) between looks and
					    * should step all engines and let time pass. NULL: a
					    * thread */
	tern_group *group;                 /* whose processes are watched; NULL: nobody's */
};

/* One rank's addresses, one for each NIC; of no bytes where that is closed. */
struct engine_address {
	uint32_t bytes[TERN_MAX_NICS];
	uint8_t address[TERN_MAX_NICS][TRANSPORT_ADDRESS_BYTES];
};

int engine_open(const struct tern_engine_config *config, const struct engine_setup *setup,
	tern_engine **engine);
int engine_address(tern_engine *engine, struct engine_address *mine);
int engine_connect(tern_engine *engine, const struct engine_address *all); /* [nr_peers] */
int engine_start(tern_engine *engine);                                     /* the proxy thread */

/* One bounded round at time now_ns: polls, takes commands, posts, looks after peers. True:
 * something happened. */
bool engine_step(tern_engine *engine, uint64_t now_ns);

/* When engine_step next has something to do though nothing arrives (heartbeats, time-outs);
 * UINT64_MAX: never. For schedulers that skip idle time. */
uint64_t engine_next_ns(const tern_engine *engine);

/* What was posted to each peer since the engine was made. [nr_peers] */
struct engine_traffic {
	uint64_t nr_writes, bytes;
};
int engine_traffic(tern_engine *engine, struct engine_traffic *all);

/* Policies of put with signal that others have, beside those of tern_engine.h: what `tern bench
 * signal` compares with. */
#define BASELINE_PUT_ONLY ((enum tern_signal_policy)0) /* no signals: the floor */
/* Put, wait until that peer's writes are done, signal; the proxy takes nothing else meanwhile. */
#define BASELINE_COUPLED ((enum tern_signal_policy)1)
/* The same, waiting for the writes to every rank, one rank after the other. */
#define BASELINE_COUPLED_ALL_PEERS ((enum tern_signal_policy)2)

/* tern_engine_put_group, which takes baselines too; checks neither arguments nor policy. */
int engine_put_group(tern_engine *engine, enum tern_signal_policy policy, uint32_t nr_puts,
	tern_done_fn done, void *ctx, tern_op *group);

/* Another transport, opened as the engine has opened its first: for what is to be measured beside
 * it. The caller closes it. TERN_ERR_UNSUPPORTED where ranks are reached over several networks. */
int engine_open_beside(
	const tern_engine *engine, struct transport **transport, struct transport_info *info);

/* ---- the exchange's path --------------------------------------------------------------------- */

/* Counts completions of many operations without a handle for each: an operation that names it adds
 * one to done when its bytes lie at the peer and its source may be reused, or one to failed. A
 * thread that sees done + failed == what it began may overwrite the staging. */
struct engine_counter {
	_Atomic uint64_t done;
	_Atomic uint64_t failed;
	_Atomic int error; /* of the first that failed */
} __attribute__((aligned(64)));

/* Counters that take one place in the engine's table together: commands name the one at index i by
 * id + i. They are not freed by closing: the caller keeps the memory until all that it began was
 * counted. */
struct engine_counters {
	struct engine_counter *first; /* [nr] */
	uint32_t nr;
	uint32_t id; /* set by engine_counters_open */
};
int engine_counters_open(tern_engine *engine, struct engine_counters *counters);
void engine_counters_close(tern_engine *engine, const struct engine_counters *counters);

/* Acquire: pairs with the proxy's release when it counts. */
static inline uint64_t engine_counter_ended(const struct engine_counter *counter)
{
	return atomic_load_explicit(&counter->done, memory_order_acquire) +
	       atomic_load_explicit(&counter->failed, memory_order_acquire);
}

/* One write with an optional immediate: no handle, counter alone. No order between writes, also to
 * one peer; the immediate comes after this write's own bytes. Waits for room in the ring, at most
 * the engine's wait_ms. bytes may be 0. */
struct engine_write {
	uint32_t peer;
	uint32_t flags; /* TERN_IMMEDIATE, TERN_TRY */
	uint32_t immediate;
	uint32_t counter; /* id of engine_counters, and an index added */
	tern_region *local;
	tern_remote *remote;
	uint64_t local_offset, remote_offset, bytes;
};
int engine_write(tern_engine *engine, const struct engine_write *write);

/* Immediates whose top byte is `prefix` belong to the claimant: `immediate` is called on the proxy
 * for each, in constant time please; peer may be UINT32_MAX. The bytes of the write that carried it
 * are visible to the proxy; a release store there hands them on. peer_down is called on the proxy
 * once for each peer that is lost, so that the claimant may wake its waiters. more is called once
 * after each engine_ask_again. Claim before any peer can send: before a collective agreement. One
 * claimant for a prefix: TERN_ERR_STATE otherwise. After engine_unclaim returns, none of the
 * functions runs any more. */
struct engine_claim {
	void (*immediate)(void *ctx, uint32_t peer, uint32_t immediate);
	void (*peer_down)(void *ctx, uint32_t peer, int error); /* may be NULL */
	void (*more)(void *ctx);                                /* may be NULL */
	void *ctx;
};
#define NR_PREFIXES 256
int engine_claim(tern_engine *engine, uint8_t prefix, const struct engine_claim *claim);
int engine_unclaim(tern_engine *engine, uint8_t prefix);

/* Messages go to `message`, on the proxy, and none to tern_engine_recv: in constant time please.
 * NULL for claim: as it was. Claim before any peer can send: before a collective agreement. */
struct engine_message_claim {
	void (*message)(void *ctx, uint32_t peer, const void *data, uint32_t bytes);
	void *ctx;
};
int engine_claim_messages(tern_engine *engine, const struct engine_message_claim *claim);

/* This peer is lost, for this cause, if it is not yet. When this returns all that was under way to
 * it has ended, and of what it has sent or sends nothing arrives in regions that it knows no key of
 * any more (transport.h, disconnect). */
int engine_let_go(tern_engine *engine, uint32_t peer, const char *cause);

/* Whether the networks that are open here can do that. */
bool engine_shuts_out(const tern_engine *engine);

/* Some network keeps what is registered in memory, all of it. */
bool engine_pins(const tern_engine *engine);

/* Whether all of them may move a GPU's memory (transport.h). */
bool engine_moves_device_memory(const tern_engine *engine);

/* Collective: a prefix that is free on all ranks, and of which no immediate is on its way any more;
 * to be claimed before the next is agreed. prefix.c tells how. */
int engine_agree_prefix(tern_group *group, tern_engine *engine, uint8_t *prefix);

/* From a claimant's function, on the proxy: what it began with TERN_TRY found no room, so `more` is
 * called once more, when commands have been taken. */
void engine_ask_again(tern_engine *engine, uint8_t prefix);

/* Deregisters, within wait_ms, and calls release. Where writes to or from it are still under way by
 * then, the network may use the memory: release is called when the engine has ended. */
typedef void (*engine_release_fn)(void *ctx, void *base, uint64_t bytes);
void engine_region_give_up(tern_region *region, int wait_ms, engine_release_fn release, void *ctx);

/* Others may still write into it: it stays registered, and release is called when the engine has
 * ended. */
void engine_region_leave(tern_region *region, engine_release_fn release, void *ctx);

/* Rings that devices write, in memory that both reach: the proxy takes their commands behind its
 * own ring's. A device wakes nobody, so the proxy sleeps for short slices alone; not at all while a
 * ring is attached that keeps it awake, which takes a core. The caller keeps ring and entries until
 * it has detached them; what was in the ring by then is taken first, if that can be done within the
 * engine's time-out. */
struct ring;
int engine_ring_attach(tern_engine *engine, struct ring *ring, bool awake);
void engine_ring_detach(tern_engine *engine, struct ring *ring);

/* The numbers by which commands name these. */
uint16_t engine_region_id(const tern_region *region);
uint16_t engine_remote_id(const tern_remote *remote);

/* Is this peer lost? 0, TERN_ERR_PEER_DEAD or TERN_ERR_PEER_LEFT; *text the cause, for as long as
 * the engine lives. Any thread, one load while all is well. Sets no tern_last_error. */
int engine_peer_down(const tern_engine *engine, uint32_t peer, const char **text);

/* How many peers are lost: for waits that look once for all. */
uint32_t engine_nr_down(const tern_engine *engine);

/* How often the proxy has polled its networks. What had come before is where it belongs when there
 * have been two more: one may have been under way. */
uint64_t engine_polls(const tern_engine *engine);

/* Silence, or a write that does not end, is no death before it has lasted as long as somebody is
 * willing to wait: raises timeout_ms to that, and never lowers it; not where the group has a
 * setting for it (silence_ms). Any thread. */
void engine_bear_silence(tern_engine *engine, int ms);

/* For people: the network that leads to a peer, and why that one: "ofi:tcp;ofi_rxm, as verbs is not
 * offered there". Only of an engine made over a group. */
const char *engine_why(const tern_engine *engine, uint32_t peer);

/* ---- ranks that come when others are there --------------------------------------------------- */

/* The networks of an engine, over which whoever comes later makes its own. Plain bytes. */
struct engine_networks {
	uint32_t nr;
	struct {
		char name[ENGINE_NETWORK_NAME];
		uint32_t nr_nics;
	} each[TERN_MAX_NICS];
};
void engine_networks(const tern_engine *engine, struct engine_networks *networks);
/* The number of the one that leads to this peer, or did. */
uint32_t engine_network_of(const tern_engine *engine, uint32_t peer);

/* Local: an engine over these networks, which runs. All of its peers are lost until they are
 * admitted. */
int engine_create_alone(tern_group *group, const struct tern_engine_config *config,
	const struct engine_networks *networks, tern_engine **engine);

/* engine_address of an engine that runs. */
int engine_own_address(tern_engine *engine, struct engine_address *mine);

/* Another process has this number, or is about to: what is known of the one before is forgotten,
 * and it is no lost peer any more. lifeline: tells of the process's end, and stays the
 * caller's; -1: nothing does. TERN_ERR_UNSUPPORTED where that network is not open here. */
int engine_admit(tern_engine *engine, uint32_t peer, uint32_t network,
	const struct engine_address *address, int lifeline);

/* It was told something since it was admitted, and heard. Asked again and again until it is so. */
bool engine_has_met(tern_engine *engine, uint32_t peer);

/* Runs fn on the proxy thread and returns what it returned, with its text. Waits for it. */
int engine_call(tern_engine *engine, int (*fn)(tern_engine *engine, void *ctx), void *ctx);

#endif
