/* SPDX-License-Identifier: Apache-2.0
 *
 * Tern's transfer engine: memory to memory over any network, for programs that want more than
 * dispatch and combine.
 *
 *    any thread                    proxy thread                        network                  the peer's proxy
 *   +-----------+   ring of      +---------------------------+   writes, immediates   +------------------------------+
 *   | operation | ─ commands ──► | expand, share over NICs,  | ─────────────────────► | bytes are in its memory,     |
 *   | wait/poll | ◄ completions  | credits, backlog, errors  | ◄─── completions ───── | then its immediate is counted|
 *   +-----------+                +---------------------------+                        +------------------------------+
 *
 * THE CONTRACT
 *
 * Objects.    A tern_engine belongs to a tern_group; its peers are the group's ranks, itself among
 *             them. A tern_region is local memory that peers may write; its descriptor is plain
 *             bytes to be sent to them by any means. A tern_remote is a peer's descriptor, taken
 *             in. A tern_peers is a list of (rank, remote) made ready once for many operations.
 * Collective. Creating is; destroying is not: ranks may leave in any order. Operations are
 * one-sided, except send and recv.
 * Threads.    All calls from any thread at any time, except that nothing may be under way with an
 *             object, or begin, while it is given up. Callbacks run on the proxy thread: they have
 *             to be quick, may begin operations with TERN_TRY, and must not wait, register or
 *             destroy.
 * Order.      None between operations, also to one peer. A completion says that the operation's
 *             bytes lie in the peer's memory. An operation's immediate is reported at the peer
 *             once, after all of its bytes to that peer are visible there.
 * Memory.     Local bytes, and the lists that an operation names, stay as they are until it
 *             completes. The argument struct itself is read during the call alone.
 * Waiting.    A call waits only for room in the ring, no longer than the engine's wait_ms; with
 *             TERN_TRY not at all. Then TERN_ERR_TIMEOUT, and nothing was begun.
 * Networks.   Each pair of ranks uses one: the first in the list of the lower of the two ranks that
 *             both offer, that both can use, and that reaches the same at both (verbs: the same
 *             kind of port; shm: the machine). The networks in use have TERN_MAX_NICS NICs together
 *             at most. A pair without one is an error of creating, on all ranks.
 * Completion. Each operation ends once, well or with an error and its cause: through its callback,
 *             through its handle, or both. A handle is given back by the tern_op_wait or
 *             tern_op_poll that reports the end, or by tern_op_forget. An operation with neither is
 *             fire and forget; failures are counted in the statistics.
 * Errors.     As in tern.h. A peer that died or left ends the operations that need it with
 *             TERN_ERR_PEER_DEAD or TERN_ERR_PEER_LEFT; new ones are refused with the same.
 *             Everything else goes on.
 */
#ifndef TERN_ENGINE_H
#define TERN_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "tern.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_MAX_NICS 4

typedef struct tern_engine tern_engine;
typedef struct tern_region tern_region;
typedef struct tern_remote tern_remote;
typedef struct tern_peers tern_peers;
typedef uint64_t tern_op; /* a handle; 0 is none */

/* How an operation ended: 0, or the error with its cause; the text is valid during the call. */
typedef void (*tern_done_fn)(void *ctx, int error, const char *text);

/* Each immediate that arrives. peer is UINT32_MAX where the network cannot tell. Non-zero: taken;
 * 0: it is counted. */
typedef int (*tern_immediate_fn)(void *ctx, uint32_t peer, uint32_t immediate);

/* ---- engine ---------------------------------------------------------------------------------- */

struct tern_engine_config {
	size_t size;           /* set by tern_engine_config_init */
	const char *transport; /* "shm", "ofi", "ofi:PROVIDER", "verbs" or "verbs:DEVICE"; default
				* "shm". With "@DEVICE,DEVICE" behind it, a NIC on each, in place of
				* nr_nics and devices. Several with + between them, as
				* "verbs+ofi:tcp;ofi_rxm": what this rank offers, the best first;
				* other ranks may offer others. See Networks */
	uint32_t nr_nics; /* 1 to TERN_MAX_NICS, the same on all ranks that use a network; of each
			     that is named without devices; default 1. NIC n talks to the peers' NIC
			     n */
	uint32_t ring_entries; /* commands that can wait for the proxy, a power of two; default 1024
				*/
	const char *devices[TERN_MAX_NICS]; /* names of NICs or interfaces; NULL: the transport's
					       choice */
	uint32_t nr_operations; /* handles and callbacks under way at once, up to 65535; default
				   1024 */
	uint32_t depth; /* writes under way on one NIC; default 1024, less where the transport takes
			   fewer */
	uint32_t peer_depth;      /* of these, to one peer; default 256 */
	uint32_t message_bytes;   /* longest message of send, the same on all ranks; default 256 */
	uint32_t message_credits; /* messages from one peer that lie unread here, the same on all
				     ranks; default 8 */
	int core; /* where the proxy runs; default -1: anywhere. Not core 0, where most kernels take
		     interrupts: a proxy there is held up */
	int wait_ms; /* longest wait of creating, leaving, and for room in the ring; default 30000
		      */
	int heartbeat_ms; /* a peer that had nothing from us for so long gets a heartbeat. 0: none;
			     default -1: 500 where its network does not see death, else none */
	int timeout_ms;   /* silence, or an unfinished write, after which a peer counts as dead;
			     default 10000. The group's own engine: see tern_group_config */
	uint64_t stripe_bytes; /* writes from this size are spread over all NICs; default 256 KiB */
	tern_immediate_fn immediate; /* sees each immediate before it is counted; NULL: all are
					counted */
	void *immediate_ctx;
};

TERN_API void tern_engine_config_init_sized(struct tern_engine_config *config, size_t size);
static inline void tern_engine_config_init(struct tern_engine_config *config)
{
	tern_engine_config_init_sized(config, sizeof(*config));
}

/* Collective. *engine is set only on success. The group has to outlive it. */
TERN_API int tern_engine_create(
	tern_group *group, const struct tern_engine_config *config, tern_engine **engine);

/* Local. What is to be sent is given wait_ms to land; what has not ended then, and all that is
 * expected, ends with TERN_ERR_STATE. Peers are told, and given a second to say that they know.
 * Regions, remotes and peer lists go with it. NULL is fine. */
TERN_API int tern_engine_destroy(tern_engine *engine);

TERN_API int tern_engine_rank(const tern_engine *engine);
TERN_API int tern_engine_nr_peers(const tern_engine *engine);

/* What the networks are, for people: "ofi (tcp;ofi_rxm), 1 NIC", or "verbs (...), 1 NIC, to ranks
 * 0-2; ofi (...), 1 NIC, to rank 3". Lives as long as the engine. */
TERN_API const char *tern_engine_describe(const tern_engine *engine);

/* 0 while the peer is there, else TERN_ERR_PEER_DEAD or TERN_ERR_PEER_LEFT, with the cause in
 * tern_last_error. */
TERN_API int tern_engine_peer(const tern_engine *engine, uint32_t peer);

struct tern_engine_stats {
	size_t size TERN_SIZE_OF(tern_engine_stats); /* set by the caller, as in all below */
	uint64_t operations;                         /* taken from the ring */
	uint64_t failed;                             /* of these, ended with an error */
	uint64_t writes;                             /* posted to transports */
	uint64_t bytes;                              /* by these */
	uint64_t again;                              /* posts that a transport put off */
	uint64_t immediates;                         /* arrived */
	uint64_t immediates_lost; /* that found no counter free: see tern_engine_expect */
	uint64_t messages_sent, messages_received, heartbeats_sent;
	uint64_t drains; /* times that a put-with-signal policy held up the ring */
	uint64_t sleeps; /* of the proxy */
	uint64_t steps;  /* rounds of the proxy */
};
TERN_API int tern_engine_stats(const tern_engine *engine, struct tern_engine_stats *stats);

/* ---- memory ---------------------------------------------------------------------------------- */

/* What a peer needs to write a region. Plain bytes: send it as it is. */
struct tern_descriptor {
	uint32_t magic, rank, nr_nics, reserved;
	uint64_t bytes;
	struct {
		uint64_t address, bytes, key;
	} nic[TERN_MAX_NICS];
};

/* Waits for the proxy. */
TERN_API int tern_engine_register(
	tern_engine *engine, void *base, uint64_t bytes, tern_region **region);
TERN_API int tern_region_descriptor(const tern_region *region, struct tern_descriptor *descriptor);
/* Waits up to wait_ms until none of this engine's operations uses it; then TERN_ERR_TIMEOUT, and it
 * stays registered. Whether peers still write it, only the caller can know. */
TERN_API int tern_region_deregister(tern_region *region, int wait_ms);

TERN_API int tern_engine_import(
	tern_engine *engine, const struct tern_descriptor *descriptor, tern_remote **remote);
TERN_API int tern_remote_forget(tern_remote *remote, int wait_ms); /* as deregister */

/* ranks[nr], each once; remotes[nr]: of those ranks, or NULL where only immediates are sent. */
TERN_API int tern_peers_create(tern_engine *engine, const uint32_t *ranks,
	tern_remote *const *remotes, uint32_t nr, tern_peers **peers);
TERN_API int tern_peers_destroy(tern_peers *peers, int wait_ms); /* as deregister */

/* ---- operations ------------------------------------------------------------------------------ */

enum tern_op_flags {
	TERN_IMMEDIATE = 1, /* the immediate is sent */
	TERN_TRY = 2        /* do not wait for room in the ring */
};

/* bytes from local + local_offset to remote + remote_offset; with no bytes local and remote may be
 * NULL. */
struct tern_write {
	size_t size TERN_SIZE_OF(tern_write);
	uint32_t peer, flags, immediate, reserved;
	tern_region *local;
	tern_remote *remote;
	uint64_t local_offset, remote_offset, bytes;
	tern_done_fn done; /* NULL: none */
	void *ctx;
};
TERN_API int tern_engine_write(tern_engine *engine, const struct tern_write *write, tern_op *op);

/* Page i: page_bytes from local_offset + local_pages[i] * local_stride to remote_offset +
 * remote_pages[i] * remote_stride. One immediate in all. */
struct tern_paged_write {
	size_t size TERN_SIZE_OF(tern_paged_write);
	uint32_t peer, flags, immediate, nr_pages;
	tern_region *local;
	tern_remote *remote;
	uint64_t page_bytes, local_offset, remote_offset, local_stride, remote_stride;
	const uint32_t *local_pages, *remote_pages;
	tern_done_fn done;
	void *ctx;
};
TERN_API int tern_engine_write_pages(
	tern_engine *engine, const struct tern_paged_write *write, tern_op *op);

/* slices[i] goes to the i-th of peers. Slices may be empty: they still send their immediate. */
struct tern_slice {
	uint64_t local_offset, remote_offset, bytes;
	uint32_t immediate, reserved;
};
struct tern_scatter {
	size_t size TERN_SIZE_OF(tern_scatter);
	uint32_t flags, reserved;
	tern_peers *peers;
	tern_region *local;
	const struct tern_slice *slices; /* as many as peers has */
	tern_done_fn done;
	void *ctx;
};
TERN_API int tern_engine_scatter(
	tern_engine *engine, const struct tern_scatter *scatter, tern_op *op);

/* Ends when `count` immediates of this value have arrived that no earlier expectation took; they
 * are then used up. Values may arrive before they are expected. There is room for as many different
 * values at once as nr_operations; if peers send more, counts are lost, and expectations end with
 * TERN_ERR_CAPACITY from then on. With peers, the end of one of them ends the expectation. */
struct tern_expect {
	size_t size TERN_SIZE_OF(tern_expect);
	uint32_t flags, immediate;
	uint64_t count;
	tern_peers *peers; /* NULL: whoever */
	tern_done_fn done;
	void *ctx;
};
TERN_API int tern_engine_expect(tern_engine *engine, const struct tern_expect *expect, tern_op *op);

/* Immediates of this value that arrived and that no expectation has taken yet. Waits for the proxy.
 */
TERN_API int tern_engine_count(tern_engine *engine, uint32_t immediate, uint64_t *count);

/* Sends the immediate to all of peers and ends when one from each has come. Two barriers of one
 * value at the same time would share their counts. */
struct tern_barrier {
	size_t size TERN_SIZE_OF(tern_barrier);
	uint32_t flags, immediate;
	tern_peers *peers;
	tern_done_fn done;
	void *ctx;
};
TERN_API int tern_engine_barrier(
	tern_engine *engine, const struct tern_barrier *barrier, tern_op *op);

/* ---- put with signal ------------------------------------------------------------------------- */

/* How the signal is kept behind its put. */
enum tern_signal_policy {
	TERN_SIGNAL_DECOUPLED = 3, /* all puts of the group, one wait for them, all signals */
	TERN_SIGNAL_NIC_FENCE = 4, /* put, then the signal with a fence, or on an ordered network as
				      it is: no wait */
	TERN_SIGNAL_PERSEUS = 5,   /* all puts of the group, then all signals, the first one to each
				      peer with a fence: no wait */
	TERN_SIGNAL_IMMEDIATE = 6  /* the put carries an immediate (the signal's low 32 bits), which
				      the peer counts */
};

struct tern_put {
	uint32_t peer, reserved;
	tern_region *local;
	tern_remote *remote;
	uint64_t local_offset, remote_offset, bytes; /* 0 bytes: only the signal */
	tern_remote *signal_remote;
	uint64_t signal_offset; /* a multiple of 8 */
	uint64_t signal;        /* the word that is written there */
};

/* A group of nr_puts puts, from any threads; it goes as one operation and ends when all puts and
 * signals have landed. All of them have to be added, also when a peer has died meanwhile: the group
 * then ends with that error. At most ring_entries puts, in all groups that are not complete.
 * NIC_FENCE and PERSEUS need fences or order on each of this rank's networks: else
 * TERN_ERR_UNSUPPORTED. *group is the operation's handle; wait for it, poll it or forget it. */
TERN_API int tern_engine_put_group(tern_engine *engine, enum tern_signal_policy policy,
	uint32_t nr_puts, tern_done_fn done, void *ctx, tern_op *group);
/* Who adds the last put sends the group off. flags: TERN_TRY. */
TERN_API int tern_engine_put(
	tern_engine *engine, tern_op group, const struct tern_put *put, uint32_t flags);

/* ---- messages -------------------------------------------------------------------------------- */

/* At most message_bytes, copied; in order for each peer. Done when the peer's engine has room for
 * it and the transport took it, which does not say that it was read. */
struct tern_send {
	size_t size TERN_SIZE_OF(tern_send);
	uint32_t peer, flags;
	const void *data;
	uint32_t bytes, reserved;
	tern_done_fn done;
	void *ctx;
};
TERN_API int tern_engine_send(tern_engine *engine, const struct tern_send *send, tern_op *op);
/* The next message of any peer, in order of arrival. *bytes: in the room, out the length.
 * TERN_ERR_TIMEOUT when none came within wait_ms. One longer than the room is kept, and its length
 * told with TERN_ERR_CAPACITY. */
TERN_API int tern_engine_recv(
	tern_engine *engine, uint32_t *peer, void *data, uint32_t *bytes, int wait_ms);

/* ---- completion ------------------------------------------------------------------------------ */

/* How the operation ended, and gives the handle back. TERN_ERR_TIMEOUT: still under way (an
 * operation itself never ends so). */
TERN_API int tern_op_wait(tern_engine *engine, tern_op op, int wait_ms);
TERN_API int tern_op_poll(tern_engine *engine, tern_op op);   /* the same with wait_ms 0 */
TERN_API int tern_op_forget(tern_engine *engine, tern_op op); /* it goes on, and nobody will ask */

#ifdef __cplusplus
}
#endif

#endif
