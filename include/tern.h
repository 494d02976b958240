/* SPDX-License-Identifier: Apache-2.0
 *
 * Tern: dispatch and combine for expert parallelism (Mixture-of-Experts).
 *
 *      home rank                                   expert's rank
 *   +--------------+   dispatch_send    rows    +------------------+
 *   | x [n][H]     | -------------------------> | dispatch_recv    |
 *   | topk_ids     |  once per (token, rank)    | rows by expert   |
 *   | topk_weights |                            |   y = expert(x)  |
 *   | out [n][H]   | <------------------------- | combine_send     |
 *   +--------------+   combine_recv     rows    +------------------+
 *
 * THE CONTRACT
 *
 * Objects.    A tern_group is this rank's membership among nr_ranks ranks. A tern_moe is one
 *             exchange: shapes, dtypes, mode and layout, and the buffers for nr_slots micro-batches
 *             in flight; all MoE layers of a model can share one.
 * Collective. Creating a group or an exchange, and every half, is called by all ranks of the group.
 *             Per slot the order is dispatch_send, dispatch_recv, combine_send, combine_recv, and
 *             around again; tern_release takes the place of both combine halves where nothing comes
 *             home. Different slots of one exchange may be interleaved, in the same order on all
 *             ranks. A rank without tokens calls all the same, with nr_tokens 0.
 * Threads.    One thread at a time in calls on the same tern_group or tern_moe, any thread;
 *             different objects are independent. Ranks may be processes or threads of one process.
 * Waiting.    Halves named *_recv wait for other ranks, and so does dispatch_send in
 *             high-throughput mode. No wait outlives wait_ms. A call that returned TERN_ERR_TIMEOUT
 *             has changed nothing that its repetition would not finish: call it again with the same
 *             arguments to go on waiting. wait_ms = 0 polls once.
 * Errors.     Every call returns 0 or a negative enum tern_error. tern_last_error() tells the cause
 *             with its figures. A call refused with TERN_ERR_INVALID or TERN_ERR_STATE has sent
 *             nothing and changed nothing. After TERN_ERR_PEER_DEAD, TERN_ERR_PEER_LEFT,
 *             TERN_ERR_PROTOCOL or, from a half, TERN_ERR_MISMATCH an exchange only reports that
 *             error again; destroy it.
 * Ownership.  Arguments belong to the caller and are read during the call alone. Received rows
 *             belong to the library (or to the caller's, see tern_received) and stay valid until
 *             combine_send or release of that slot returns.
 * Sizes.      Structs that begin with their size may be those of an older header, or of a newer
 *             one, than the library's: docs/api.md, between versions.
 * Output.     The library never prints, exits, aborts or installs signal handlers.
 *
 * Words: token, one row of x with its top-k; row, one token on its way to one rank; route, one
 * (token, k); R ranks, E experts, P physical experts (E plus replicas), L physical experts on this
 * rank, K top-k, T max_tokens, H hidden.
 */
#ifndef TERN_H
#define TERN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TERN_VERSION_MAJOR 0
#define TERN_VERSION_MINOR 1
#define TERN_VERSION_PATCH 0
#define TERN_MAX_TOPK 32

#if defined(__GNUC__)
#define TERN_API __attribute__((visibility("default")))
#else
#define TERN_API
#endif

/* Of a size that callers set: {.size = sizeof(d)} in C, or `struct tern_dispatch d{};` in C++. */
#ifdef __cplusplus
#define TERN_SIZE_OF(type) = sizeof(struct type)
#else
#define TERN_SIZE_OF(type)
#endif

/* ---- errors ---------------------------------------------------------------------------------- */

enum tern_error {
	TERN_OK = 0,
	TERN_ERR_INVALID = -1,   /* an argument or setting is wrong; nothing was sent */
	TERN_ERR_STATE = -2,     /* a half called out of order; nothing was sent */
	TERN_ERR_MISMATCH = -3,  /* ranks disagree on a setting, or on the placement by which a
				    round is routed; named in tern_last_error */
	TERN_ERR_NOMEM = -4,     /* no memory, address space or descriptors */
	TERN_ERR_SYSTEM = -5,    /* a system call failed; errno's text is in tern_last_error */
	TERN_ERR_BOOTSTRAP = -6, /* the ranks could not find each other */
	TERN_ERR_TIMEOUT = -7,   /* a wait expired: tern_moe_wait_report says who waits for whom */
	TERN_ERR_PEER_DEAD = -8, /* a peer's process ended without leaving */
	TERN_ERR_PEER_LEFT = -9, /* a peer destroyed its exchange, or gave it up, while others wait
				    for it */
	TERN_ERR_CAPACITY = -10, /* more rows than a rank can take; every rank gets this, no row
				    moved, and the slot is free for the next dispatch */
	TERN_ERR_PROTOCOL = -11, /* a peer did something that no correct peer does, such as combine
				    against release */
	TERN_ERR_UNSUPPORTED = -12, /* not built in, or not possible on this machine */
	TERN_ERR_MEMBERS = -13,  /* elastic groups: a member is gone. Call tern_group_view_change on
				    all others, then repeat what returned this */
	TERN_ERR_EXPELLED = -14, /* the others have gone on without this rank */
	TERN_ERR_QUORUM = -15,   /* too few members are heard from to go on without the others */
	TERN_ERR_LOST_EXPERTS = -16 /* no member holds these experts any more; nothing was sent */
};

/* A code's name and meaning, such as "TERN_ERR_TIMEOUT: a wait expired". Never NULL. Any thread. */
TERN_API const char *tern_strerror(int code);

/* The cause of this thread's most recent failed call, with figures; "" before the first. Valid
 * until the thread's next call. */
TERN_API const char *tern_last_error(void);

TERN_API const char *tern_version(void); /* "0.1.0" */

/* ---- bootstrap: how ranks find each other ---------------------------------------------------- */

/* Gathers `bytes` bytes from every rank into all[nr_ranks * bytes], in rank order, on every rank. 0
 * on success; anything else ends the creating call with TERN_ERR_BOOTSTRAP. Called by create calls
 * only, on the calling thread. */
typedef int (*tern_allgather_fn)(void *ctx, const void *mine, void *all, size_t bytes);

/* Of those that the library makes rank and nr_ranks may not be changed, and each may be given to
 * one group: creation refuses another with TERN_ERR_INVALID, and does not close what is another
 * group's. Ranks whose places and numbers do not fit together get TERN_ERR_MISMATCH. */
struct tern_boot {
	int rank;
	int nr_ranks;
	tern_allgather_fn allgather; /* may be NULL for one rank */
	void *ctx;                   /* passed to allgather; must live as long as the group */
	void (*close)(void *ctx); /* called once when the group goes, or its creation fails; NULL:
				     nothing to do */
};

/* From the environment that `tern run` makes (TERN_RANK, TERN_NR_RANKS, TERN_BOOT_FD), else from
 * PMIx (mpirun, prterun, srun) where built in, else one rank alone. *boot is set only on success.
 */
TERN_API int tern_boot_env(struct tern_boot *boot);

/* One rank alone, whatever the environment says. */
TERN_API int tern_boot_self(struct tern_boot *boot);

/* Ranks as threads of this process: one tern_threads for all, one boot for each rank; wait_ms
 * bounds each gathering. Every boot's close counts down; destroy the tern_threads after the last
 * group is gone. */
struct tern_threads;
TERN_API int tern_threads_create(int nr_ranks, int wait_ms, struct tern_threads **threads);
TERN_API int tern_threads_boot(struct tern_threads *threads, int rank, struct tern_boot *boot);
TERN_API void tern_threads_destroy(struct tern_threads *threads);

/* A place that the processes of a group reach, and those that come later: byte strings by name. A
 * program that has been started anew finds there whom to ask. Called by tern_group_create,
 * tern_group_join and the tern_group_view_change that ends it, on the calling thread; each call
 * returns within wait_ms. Who can read there can join, as a process of the same user. */
struct tern_rendezvous {
	/* 0; anything else is an error. In place of what was there before. */
	int (*set)(void *ctx, const char *key, const void *value, size_t bytes, int wait_ms);
	/* 0, and the value's length in *bytes, which was the room for it; 1: there is nothing of
	 * that name; anything else is an error. */
	int (*get)(void *ctx, const char *key, void *value, size_t *bytes, int wait_ms);
	void *ctx; /* lives as long as the group */
};

/* Where TERN_RESTARTS is set, by `tern run --restart` or by what starts a rank anew under PMIx
 * (docs/launchers.md): the one that `tern run` keeps for its ranks, or that PMIx's server does, as
 * long as a boot of tern_boot_env is open. TERN_ERR_UNSUPPORTED elsewhere. */
TERN_API int tern_rendezvous_env(struct tern_rendezvous *rendezvous);

/* How often this rank was started anew (TERN_RESTARTS): one that was calls tern_group_join. 0:
 * never; or a negative code. */
TERN_API int tern_boot_restarts(void);

/* ---- group ----------------------------------------------------------------------------------- */

typedef struct tern_group tern_group;

enum tern_path {
	TERN_PATH_SELF = 0,   /* this rank */
	TERN_PATH_MAPPED = 1, /* the peer's window is in this address space */
	TERN_PATH_NONE = 2,   /* no way to reach it: exchanges over it are refused */
	TERN_PATH_ENGINE = 3  /* the transfer engine writes into its window: tern_engine.h */
};

struct tern_group_config {
	size_t size; /* set by tern_group_config_init */
	struct tern_boot boot;
	int wait_ms; /* longest wait during creation, ms; default 30000. A rank on another node that
			is silent for longer than this (at least 2000), and than the longest wait_ms
			of any exchange, counts as dead */
	const char *node;      /* this rank's virtual node, for tests; NULL: by host identity, or
				  TERN_NODE.      At most 64 bytes */
	const char *transport; /* networks that this rank offers to peers whose window cannot be
				  mapped, the best first: see tern_engine_config; NULL:
				  TERN_TRANSPORT, else "verbs+ofi". Each pair of ranks uses one that
				  both have; ranks may offer different ones */
	int force_engine;      /* not 0: no window is mapped, all go through the engine, for tests;
				  TERN_FORCE_ENGINE=1 does the same. The same on all ranks */
	int elastic;    /* not 0: members may die, and the others go on: see "views" below. At most
			   256 ranks. The same on all ranks */
	int silence_ms; /* a rank on another node that is silent for so long counts as dead, ms,
			   from 500 on; 0: as wait_ms says. The same on all ranks */
	struct tern_rendezvous rendezvous; /* elastic, without force_engine: others may join later;
					      "views" below. All 0, the default: they cannot. The
					      same on all ranks */
};

TERN_API void tern_group_config_init_sized(struct tern_group_config *config, size_t size);
static inline void tern_group_config_init(struct tern_group_config *config)
{
	tern_group_config_init_sized(config, sizeof(*config));
}

/* Collective. Takes over config->boot, also when it fails; but not where config->size, smaller than
 * that of any version or above 4096, says that config was not initialised. *group is set only on
 * success. */
TERN_API int tern_group_create(const struct tern_group_config *config, tern_group **group);

/* Local. Destroy the group's exchanges first: TERN_ERR_STATE otherwise. NULL is fine. Ranks may
 * leave in any order. */
TERN_API int tern_group_destroy(tern_group *group);

/* A new process takes the place of a rank that is no member any more: "views" below. config as that
 * of the members; of the bootstrap only rank and nr_ranks are used. Local, as far as others are
 * concerned: they go on, and answer on a thread of their own. TERN_ERR_BOOTSTRAP where no member
 * answers within wait_ms, TERN_ERR_TIMEOUT where not all do, TERN_ERR_STATE where the place is
 * taken, TERN_ERR_MISMATCH where settings differ, TERN_ERR_UNSUPPORTED where it comes from another
 * node than those that live on its place's. */
TERN_API int tern_group_join(const struct tern_group_config *config, tern_group **group);

TERN_API int tern_group_rank(const tern_group *group);
TERN_API int tern_group_nr_ranks(const tern_group *group);
TERN_API int tern_group_nr_nodes(const tern_group *group);
TERN_API int tern_group_node(const tern_group *group, int rank); /* 0-based; negative code for a bad
								    rank */
TERN_API int tern_group_path(const tern_group *group, int rank); /* enum tern_path; negative code
								    for a bad rank */
/* How each other rank is reached and why so, for people: "ranks 1-3: shared memory; rank 4: verbs,
 * which both offer; rank 5: ofi:tcp;ofi_rxm, as verbs cannot be used there: ...". Of GPUs on
 * several nodes also, from the first exchange on, where rows lie that networks move, and why: "rows
 * of GPUs to and from other nodes: in pinned memory, as ...". Less than 1024 bytes. Lives as long
 * as the group. */
TERN_API const char *tern_group_describe(const tern_group *group);

/* The group's own allgather, for the caller's use; collective. In an elastic group it returns
 * TERN_ERR_MEMBERS as halves do, and is then repeated with the same arguments. Of a rank that is no
 * member any more all members get the same: what it gave before it went, or zeros. */
TERN_API int tern_group_allgather(tern_group *group, const void *mine, void *all, size_t bytes);

/* ---- views: members that die -----------------------------------------------------------------
 *
 * The members of an elastic group are its view. It changes when one is gone: a call that waits for
 * it returns TERN_ERR_MEMBERS, on all others within a few milliseconds. Then each calls
 * tern_group_view_change, which agrees with the others on who is left; and goes on:
 *
 *     while ((rc = round(moe, layer)) == TERN_ERR_MEMBERS) {      dispatch, experts, combine
 *             rc = tern_group_view_change(group, &view);
 *             while (!rc && tern_moe_owed(moe, slot, &tag) == 1)  for each elastic exchange and
 * slot
 *                     rc = empty_round(moe, tag);                 no tokens; experts of `tag`
 *             ...                                                 any error in there: likewise
 *     }
 *
 * Exchanges with tern_moe_config.elastic keep their handles and addresses. The round that was under
 * way is made again from its first half, with the same tokens, by the replicas that live; what it
 * left behind is not looked at. Ranks may be one round ahead of others, which then need their
 * experts once more: tern_moe_owed says so.
 *
 * A rank that went may be replaced, where the group has a rendezvous: a new process takes its
 * number. The others notice that as they notice a death, and go on as above.
 *
 *     config.boot.rank, config.boot.nr_ranks, config.rendezvous, config.elastic: as the others had
 *     tern_group_join(&config, &group);           nobody is disturbed so far
 *     tern_moe_create(group, &mc, &moe);          each that they have, in the order they made them
 *     load_weights();                             takes as long as it takes
 *     tern_group_view_change(group, &view);       now it is a member
 *     tern_group_allgather(group, ...);           with all of them; from here on it serves
 *
 * It serves from the first tern_group_allgather on that all members begin after that view: there
 * all are at the same place of their programs, and what it has to know can be told. Until then the
 * others make their rounds without it, and its halves return TERN_ERR_STATE. No slot may have a
 * round under way at that one: TERN_ERR_STATE on all ranks. Weights of its experts are its own
 * affair. */

struct tern_view {
	size_t size TERN_SIZE_OF(tern_view); /* sizeof(struct tern_view) */
	uint64_t number;                     /* of changes since the group was made */
	uint32_t nr_alive;                   /* members */
	uint32_t nr_gone;                    /* that went with the last change */
	uint64_t alive[4];                   /* bit r % 64 of word r / 64: rank r is a member */
	uint64_t gone[4];   /* likewise: went with the last change that a call here made */
	uint64_t change_ns; /* that change took, from where this rank noticed it */
	uint64_t joined[4]; /* likewise: came with it. In `gone`, too: one has come in its place */
	uint32_t nr_joined;
	uint32_t reserved;
};

enum tern_change {
	TERN_CHANGE_LEAVE = 1, /* this rank goes */
	TERN_CHANGE_EXPEL = 2  /* another one, which is stuck or too slow, has to go */
};

/* Local. Asks for a change, which tern_group_view_change on all members then makes. A rank that
 * leaves is out when that call returns on it; it has stored its last, and others do without its
 * experts. A rank that is expelled is ended (SIGKILL) by ranks of its own node before the others go
 * on, also when it is stopped, and shut out by the others: it can spoil nothing any more. Where
 * none of its node lives it may go on, and finds TERN_ERR_EXPELLED. */
TERN_API int tern_group_propose(tern_group *group, int change, int rank); /* enum tern_change */

/* 1: a change of members is wanted, and calls that wait return TERN_ERR_MEMBERS; 0: none is known
 * of. One load. Negative for a group that is not elastic. */
TERN_API int tern_group_pending(const tern_group *group);

/* Collective of the members that live; no call on the group or its elastic exchanges may be under
 * way on this rank. Returns when the change is made, at once where none is wanted. TERN_ERR_TIMEOUT
 * after the group's wait_ms names whom it waits for, and may be repeated; TERN_ERR_QUORUM likewise.
 * After TERN_ERR_EXPELLED this rank can only destroy what it has. *view is set on success. */
TERN_API int tern_group_view_change(tern_group *group, struct tern_view *view);

/* ---- exchange -------------------------------------------------------------------------------- */

typedef struct tern_moe tern_moe;

enum tern_dtype {
	TERN_BF16 = 1,
	TERN_FP16 = 2,
	TERN_FP32 = 3,
	TERN_FP8_E4M3 = 4, /* the OCP "fn" format: no infinity, largest 448 */
	TERN_BYTES = 5     /* opaque: payload_bytes a row, not looked at */
};

/* Scales of FP8 rows, one for each block of 128 elements of a row (the last block may be shorter):
 * ceil(H / 128) a row. Quantising: amax is the block's largest magnitude, where NaN does not count
 * and infinity counts as the largest number. Where amax / 448 is below 2^-126 the scale is 2^-126,
 * and that of a block of zeros is 1: no scale is subnormal. */
enum tern_scale {
	TERN_SCALE_NONE = 0,
	TERN_SCALE_FP32 = 1, /* value = element * scale; quantising: scale = amax / 448 */
	TERN_SCALE_UE8M0 = 2 /* one byte e: scale 2^(e-127); quantising: the smallest power of two
				>= amax / 448 */
};

/* TERN_AUTO chooses one of the two when the exchange is created, for all its rounds, from settings
 * that are the same on all ranks: high throughput where capacity is given; low latency where
 * caller_output or masks are; else by max_tokens, low latency up to 256 on CPUs, and on devices up
 * to 4096 between two ranks, 2048 between up to four, else 1024; with gates or between nodes 2048
 * between two, else 1024. Of fewer SMs, by nr_sms or as slots share 132 of them, low latency makes
 * less: up to 2048 with at least 96, 1024 with 64, 512 with 40, else 256; half of that between more
 * than two ranks. tern_moe_mode tells. */
enum tern_mode {
	TERN_AUTO = 0,
	TERN_LOW_LATENCY = 1, /* send without asking: private regions for each source; memory R * T
				 rows */
	TERN_HIGH_THROUGHPUT = 2 /* ask, then send: counts first, then rows straight to their final
				    place */
};

enum tern_layout {
	TERN_PADDED = 1,     /* x [L][capacity][H], counts [L] */
	TERN_CONTIGUOUS = 2, /* x [rows][H]: expert l's rows start at offsets[l], a multiple of
				`alignment`; counts [L] */
	TERN_BY_SOURCE = 3   /* x [rows][H], each token once: source r's rows start at offsets[r];
				local top-k ids and weights a row */
};

enum tern_reduce {
	TERN_REDUCE_HOME = 1,  /* one row for each route comes home, summed there in k order: exact,
				  more bytes */
	TERN_REDUCE_EXPERT = 2 /* routes are summed on the expert's rank, in k order, one row for
				  each (token, rank); home sums in rank order */
};

enum tern_weights {
	TERN_WEIGHTS_COMBINE = 1, /* combine multiplies each y row by its gate weight */
	TERN_WEIGHTS_PASS = 2     /* weights are handed to the experts; combine only sums */
};

/* Where x, y, out and all that goes with them lie, and where the halves run. */
enum tern_device {
	TERN_DEVICE_CPU = 0,
	TERN_DEVICE_CUDA = 1
};

/* The layout of experts over ranks. Physical expert p serves logical expert logical[p] on rank
 * rank[p]; a rank's local experts are its physical experts in ascending order. Several p with one
 * logical id are replicas: each route goes to one of them (enum tern_replicas). Tables are copied
 * by tern_moe_create; `logical` may change between rounds (tern_moe_place). */
struct tern_placement {
	uint32_t nr_physical;   /* 0: no replicas, nr_experts physical experts */
	const int32_t *logical; /* [nr_physical]; NULL: the identity */
	const int32_t *rank;    /* [nr_physical]; NULL: contiguous blocks, the first nr_physical % R
				   ranks one more */
};

/* Which of an expert's replicas a route goes to. The ranks of a group of replica_ranks choose as
 * one. */
enum tern_replicas {
	TERN_REPLICAS_AUTO = 0,        /* least loaded on CPUs, in turn on devices */
	TERN_REPLICAS_IN_TURN = 1,     /* one on the source's own rank if there is one, else number
					  (source rank + token) % replicas */
	TERN_REPLICAS_LEAST_LOADED = 2 /* CPUs only: the source counts its routes to experts with
					  one place, by rank; then, in the order of tokens and k,
					  each other route goes to a replica on the rank to which it
					  sends least so far. Among equals the one in turn, else the
					  next behind number (source rank + token) % replicas */
};

/* Calls body(arg, i) once for each i below nr, on any threads, several at once or one after the
 * other, and returns when all have returned. Must not call the exchange. */
typedef void (*tern_parallel_for)(
	void *ctx, uint32_t nr, void (*body)(void *arg, uint32_t i), void *arg);

struct tern_moe_config {
	size_t size;               /* set by tern_moe_config_init */
	enum tern_mode mode;       /* default TERN_AUTO */
	enum tern_layout layout;   /* default TERN_CONTIGUOUS */
	enum tern_reduce reduce;   /* default TERN_REDUCE_EXPERT */
	enum tern_weights weights; /* default TERN_WEIGHTS_COMBINE. TERN_BY_SOURCE needs
				      TERN_REDUCE_EXPERT and TERN_WEIGHTS_PASS: there the caller has
				      reduced */
	uint32_t hidden;           /* H, elements, at most 2^24; every row a multiple of 16 bytes */
	uint32_t nr_experts;       /* E, logical */
	uint32_t topk;             /* K, 1 to TERN_MAX_TOPK */
	uint32_t max_tokens; /* T: most tokens that a rank may pass to one dispatch; the same on all
				ranks */
	enum tern_dtype x_dtype;        /* what the caller passes; default TERN_BF16 */
	enum tern_dtype dispatch_dtype; /* what travels and is received; default TERN_BF16. Equal to
					   x_dtype, or TERN_FP8_E4M3 with x_dtype BF16, FP16 or
					   FP32: quantised on the way out */
	enum tern_scale scale;  /* for TERN_FP8_E4M3; default TERN_SCALE_NONE, refused there */
	uint32_t payload_bytes; /* for TERN_BYTES: bytes of a row, a multiple of 16; to 64 MiB */
	enum tern_dtype combine_dtype; /* BF16, FP16 or FP32, of y, on the way, and of out; sums are
					  fp32, weight * y added by a fused multiply-add. Default
					  TERN_BF16 */
	uint32_t nr_slots;             /* micro-batches in flight, 1 to 16; default 1 */
	uint32_t alignment;            /* TERN_CONTIGUOUS: rows; default 1 */
	uint64_t capacity; /* most rows received: of one expert (PADDED), of all with alignment
			      (CONTIGUOUS), of all (BY_SOURCE). 0: the worst case. Low-latency mode
			      takes only 0. A rank has at most 2^32 - 1 row positions */
	struct tern_placement placement; /* default: contiguous blocks, no replicas */
	uint32_t replica_ranks; /* tensor-parallel replicas: ranks [g*n, (g+1)*n) pass the same
				   tokens, each sends its share, all get all results. Default 1;
				   divides R */
	int wait_ms;            /* longest wait of one call, ms; 0 polls once; default 30000 */
	uint32_t first_epoch;   /* number of the first round; default 1. For tests of wrap-around */
	uint32_t nr_chunks;     /* high throughput, between nodes: chunks of rows under way to each
				   node, and as many pieces of results in all; 2 to 512. 0: TERN_CHUNKS
				   of the environment, or 16, less where there are many nodes */
	uint32_t chunk_bytes;   /* of each, at least: a row always fits; 0: TERN_CHUNK_BYTES of the
				   environment, or 512 KiB, less where there are many nodes */
	uint16_t device; /* enum tern_device; default TERN_DEVICE_CPU. See "on a device" below */
	uint16_t caller_output; /* not 0, devices only: rows always go into the caller's into_x, and
				   no memory is taken for them */
	uint32_t nr_threads;    /* of this rank, which pack, copy and sum rows; CPU only; may differ
				   between ranks. 1 to 256; 1: the one that calls. 0: TERN_THREADS
				   of the environment, or 1. The others are the library's, asleep
				   between calls, unless there is a parallel_for. Results are the
				   same bits */
	uint32_t elastic; /* not 0: goes on when members of its group, an elastic one, die. With
			     TERN_REDUCE_HOME and replica_ranks 1; on devices on one node,
			     without plans, made while all members are there; in low
			     latency their windows are there twice (tern_moe_memory).
			     Experts survive where they have replicas on other ranks */
	tern_parallel_for parallel_for; /* with nr_threads > 1, in place of threads of the library:
					   the caller's pool, used within halves alone */
	void *parallel_ctx;
	uint32_t combine_floats; /* not 0: a combine takes a float of each (token, k) home, beside
				    results: tern_combine.floats */
	uint32_t masks; /* not 0: tern_moe_mask may be called. Low latency on the CPU, not elastic,
			   replica_ranks 1, no plans. Room for results is then for each rank by
			   itself: address space, as it is touched as before */
	uint32_t replicas;     /* enum tern_replicas */
	uint32_t gate_rows;    /* devices: 64 or 128: kernels may read received rows while others
				  still come, in tiles of so many rows of an expert: see "gates". 0:
				  they may not */
	uint32_t late_weights; /* not 0: with TERN_REDUCE_EXPERT a combine is given topk_weights, or
				  is unweighted: they go to the experts' ranks ahead of the sums,
				  and its first half waits for those of others. Devices of one
				  node that reach each other over NVLink, low latency, rows by
				  expert, results of BF16, not elastic, no gates, replica_ranks 1
				*/
	uint32_t slots_in_turn; /* not 0: on devices, kernels of different slots never run at the
				   same time, as the caller puts all of them on one stream, or lets
				   each wait for the one before it: so each may take the whole
				   device. Else they share it out, and none begins early */
	uint32_t nr_sms; /* devices: most SMs that a half may take, which tern_moe_set_sms changes
			    for this rank's later calls. 0, the default: as many as are fastest */
};

TERN_API void tern_moe_config_init_sized(struct tern_moe_config *config, size_t size);
static inline void tern_moe_config_init(struct tern_moe_config *config)
{
	tern_moe_config_init_sized(config, sizeof(*config));
}

/* Collective. Settings are compared first: ranks that disagree get TERN_ERR_MISMATCH with ranks and
 * values. wait_ms may differ. In an elastic group it may return TERN_ERR_MEMBERS, and
 * TERN_ERR_TIMEOUT while others have not come, and is then repeated as tern_group_allgather is;
 * when all have come it goes on without whoever dies, and the next half says that members have
 * changed. Any number of exchanges may be made one after the other, and be alive
 * as memory and descriptors allow; where a transfer engine is between ranks, 256 of a group, and
 * one more is refused with TERN_ERR_NOMEM. */
TERN_API int tern_moe_create(
	tern_group *group, const struct tern_moe_config *config, tern_moe **moe);

/* Local, in any order on the ranks. Destroy its layers (tern_layer.h) first: TERN_ERR_STATE
 * otherwise. NULL is fine. */
TERN_API int tern_moe_destroy(tern_moe *moe);

/* Local. Gives the exchange up and keeps its memory: peers that wait for this rank get
 * TERN_ERR_PEER_LEFT, halves called from now on return TERN_ERR_STATE, and received rows can be
 * read until tern_moe_destroy. For bindings whose arrays may outlive the exchange. */
TERN_API int tern_moe_leave(tern_moe *moe);

/* Local: from here on this rank neither sends to that one nor waits for it, for as long as the
 * exchange lives. Its experts' replicas elsewhere serve this rank's tokens; where there are none
 * their routes count as -1. A half that has expired because of it is called again and goes on: what
 * had to come from there counts as nothing. Nobody else is told, and nothing is agreed upon: tokens
 * of others may still be summed with its experts, and the masked rank waits for this one until it
 * gives up or masks it. So a serving engine keeps its time per token, and its ranks may differ in
 * what they compute; views (above) never do. */
TERN_API int tern_moe_mask(tern_moe *moe, int rank);

TERN_API int tern_moe_set_wait(tern_moe *moe, int wait_ms);

/* Other experts in the same places: place p serves logical[p] from the next dispatch on, on all
 * slots. Rounds that were dispatched end as they began. Local and quick, no communication; all
 * ranks call it with the same version and tables between the same rounds. Both go with each round,
 * so that ranks which differ get TERN_ERR_MISMATCH, which names them and their versions and ends
 * the exchange, and nothing is summed. `version` is the caller's number, in any order; it is 0
 * after tern_moe_create. nr_physical is that of creation, ranks of places stay, and every expert
 * has a place: TERN_ERR_INVALID otherwise. TERN_ERR_STATE while a dispatch has returned
 * TERN_ERR_TIMEOUT and has not gone on, and in an elastic exchange while a round is under way on
 * any slot: it may have to be made again. There, places of ranks that are gone serve nobody; a
 * round that is owed to others is of their version (tern_received.version). A plan is of the
 * version by which it was routed, and with another it is TERN_ERR_STATE; but that an elastic
 * dispatch with a plan routes it anew.
 *
 * On devices the tables are copied on each slot's stream (tern_moe_set_stream), so rounds that are
 * on it go by the old ones, and later ones by the new, also those of graphs that were captured
 * before and are launched there; the call waits for no stream, but where copies of eight calls
 * are under way (at most wait_ms, then TERN_ERR_TIMEOUT). tern_received.version is that of the
 * call, not of a graph's launch. TERN_ERR_STATE: a slot's stream is being captured; or the exchange
 * was made without placement.logical, so that its kernels look into no tables. */
TERN_API int tern_moe_place(
	tern_moe *moe, uint32_t version, const int32_t *logical, uint32_t nr_physical);

/* Where physical experts live, for engines that load weights; as tern_moe_place has left them: */
TERN_API int tern_moe_nr_local(const tern_moe *moe); /* L */
TERN_API int tern_moe_mode(const tern_moe *moe);     /* TERN_LOW_LATENCY or TERN_HIGH_THROUGHPUT */
TERN_API int tern_moe_local_expert(const tern_moe *moe, uint32_t local); /* its logical id, or a
									    negative code */

struct tern_memory {
	size_t size TERN_SIZE_OF(tern_memory); /* set by the caller: sizeof(struct tern_memory) */
	uint64_t window_bytes;  /* shared with peers: staging, regions, flags; of an elastic
				   exchange on a device, in low latency, twice. On CPUs address
				   space: pages are taken when first written */
	uint64_t output_bytes;  /* received rows, in the window or beside it, address space likewise
				 */
	uint64_t private_bytes; /* plans and bookkeeping */
	uint64_t staging_bytes; /* between nodes: what waits to be sent, or to be passed on. In
				   high-throughput mode on the CPU it does not depend on max_tokens;
				   on devices it is pinned, and what of it lies in a device's
				   memory is counted as private */
};
TERN_API int tern_moe_memory(const tern_moe *moe, struct tern_memory *memory);

/* ---- the halves ------------------------------------------------------------------------------ */

struct tern_dispatch {
	size_t size TERN_SIZE_OF(tern_dispatch); /* sizeof(struct tern_dispatch) */
	uint32_t slot;
	uint32_t nr_tokens; /* n, 0 to T */
	const void *x;      /* [n][H] of x_dtype, or [n][payload_bytes]; 16-byte aligned */
	size_t x_stride;    /* bytes from row to row, a multiple of 16; 0: dense */
	const void *scales; /* [n][ceil(H/128)] float or uint8_t when x_dtype is TERN_FP8_E4M3; else
			       NULL */
	size_t scales_stride;   /* bytes; 0: dense */
	const void *topk_ids;   /* [n][K] logical expert ids, dense; -1: no expert; no id twice in a
				   row */
	uint32_t topk_ids_bits; /* 32 or 64; 0 means 32 */
	uint32_t reserved;
	const float *topk_weights; /* [n][K], dense; NULL: all 1 */
	uint64_t tag;  /* elastic exchanges: the caller's name of the round, such as its layer */
	uint64_t plan; /* 0: none; else rows go where they went: see "plans" */
};

/* Where a received row came from. */
struct tern_row {
	int32_t rank;  /* its source */
	int32_t token; /* its row in that rank's x */
	int32_t k;     /* which of its top-k routes; -1 in TERN_BY_SOURCE */
	float weight;  /* its gate weight; 0 in TERN_BY_SOURCE */
};

struct tern_received {
	size_t size TERN_SIZE_OF(tern_received); /* sizeof(struct tern_received) */
	void *into_x; /* in: low-latency mode may fill the caller's buffer, 16-byte aligned, of as
			 many row positions as the worst case has; NULL: library memory */
	void *into_scales; /* in: goes with into_x for FP8, aligned to one scale. NULL on a device,
			      with gemm_scales of fewer than 2^32 elements in all, for UE8M0 of a
			      multiple of 4 blocks: these alone are written, and by the kernel that
			      receives the rows */
	void *x;           /* out, like all below: the rows */
	void *scales; /* [rows][ceil(H/128)]; NULL unless FP8, or where gemm_scales alone are */
	const uint32_t *counts;  /* [L] rows of each local expert; TERN_BY_SOURCE: [R] rows of each
				    source */
	const uint64_t *offsets; /* [L] first row position of each local expert; TERN_BY_SOURCE: [R]
				    of each source */
	const struct tern_row *rows; /* by row position; only those that hold a row are set */
	const int32_t *topk_ids;   /* TERN_BY_SOURCE: [rows][K] local expert ids, -1: not here; else
				      NULL */
	const float *topk_weights; /* TERN_BY_SOURCE: [rows][K], 0 where the id is -1; else NULL */
	uint64_t nr_rows;          /* rows received, without padding */
	uint64_t extent; /* row positions spanned, padding included: every row's position is below
			    it */
	/* In: what else is wanted of the rows, written when they have come; NULL: not that. */
	int64_t *wide_ids; /* TERN_BY_SOURCE: [positions][K], topk_ids in 64 bits, and -1 in all
			      rows behind the last: as many as the worst case, or the capacity, has
			    */
	uint32_t *expert_counts; /* [L] rows for each local expert (TERN_BY_SOURCE: routes to it),
				    rounded up to a multiple of counts_alignment */
	uint64_t *expert_totals; /* [L] the same, not rounded, is added to what is there */
	uint64_t *waited_ns;     /* [R] the time for which each source's dispatch was waited for is
				    added (in high-throughput mode: after that for counts). On a
				    device in low-latency mode alone, where the halves are kernels of
				    their own then */
	void *gemm_scales; /* FP8: the scales column by column, 16-byte aligned, as GEMMs read them
			      through TMA: float [ceil(H/128)][stride], the one of row position p at
			      p; TERN_SCALE_UE8M0: uint32_t [ceil(H/512)][stride], four exponents
			      in each, the lowest byte first, 0 where the row has no more.
			      TERN_PADDED: so for each of L experts, p counted from its first row */
	uint32_t gemm_scales_stride; /* in elements, a multiple of 4; 0: the positions, or in
					TERN_PADDED the capacity, rounded up to one */
	uint32_t counts_alignment;   /* 0: 1 */
	uint32_t *into_counts;  /* in: the lists go here, [L], or [R] in TERN_BY_SOURCE, aligned to
				 */
	uint64_t *into_offsets; /* 4 and 8 bytes; on devices in high-throughput mode by
				   tern_dispatch alone, as its first half writes them. NULL: library
				   memory */
	uint32_t version; /* out: of the placement by which rows were routed: tern_moe_place */
	uint32_t reserved;
};

struct tern_combine {
	size_t size TERN_SIZE_OF(tern_combine); /* sizeof(struct tern_combine) */
	uint32_t slot;
	uint32_t unweighted; /* not 0: rows are summed as they are, whatever the exchange's
				`weights`; the same on all ranks */
	const void *y;   /* rows of combine_dtype at the positions of the received x rows; 16-byte
			    aligned; may be NULL with no rows */
	size_t y_stride; /* bytes; 0: dense */
	uint64_t plan;   /* 0: of the slot's dispatch; else of that plan, and the slot has no round
			    under way: see "plans" */
	const float *topk_weights; /* [n][K], dense: this rank's tokens are weighted by these, and
				      not by those of the dispatch, whatever the exchange's
				      `weights`. With TERN_REDUCE_HOME, where sums are made at home,
				      or with late_weights. NULL: none; with late_weights without
				      tokens alone */
	const float *floats; /* with tern_moe_config.combine_floats: [positions], a float for each
				received row; TERN_BY_SOURCE: [positions][K], for each of its
				routes that are here. NULL: zeros */
	float *out_floats;   /* likewise: [n][K], written when results have come: the float of each
				route, from its expert's rank, bit for bit; 0 where the id is -1.
				Read until the combine has ended. NULL: not wanted */
	uint64_t tag;        /* elastic, with a plan and no round under way: as tern_dispatch.tag */
	uint32_t gated; /* not 0: y's rows are waited for tile by tile, until each has so many marks
			   of tern_tile_done: see "gates" */
	uint32_t no_floats; /* not 0: no rank's combine of this round has floats or out_floats,
			       although combine_floats was set; the same on all ranks. It spares a
			       kernel on devices */
};

/* Sends each token once to every rank that holds one of its experts. Waits only in high-throughput
 * mode: for all counts, and between nodes for room for more rows. After TERN_ERR_TIMEOUT it goes on
 * when called again with the same arguments. */
TERN_API int tern_dispatch_send(tern_moe *moe, const struct tern_dispatch *args);
/* Waits for all sources, then describes the rows in *received. */
TERN_API int tern_dispatch_recv(tern_moe *moe, uint32_t slot, struct tern_received *received);
/* How many rows the slot's last dispatch brought, and the positions that they span. On a device it
 * waits for the stream: the one wait of the host that exact sizes cost. */
TERN_API int tern_received_sizes(tern_moe *moe, uint32_t slot, uint64_t *nr_rows, uint64_t *extent);
/* Sends the experts' results home. x and y may be overwritten when it returns 0. Between nodes it
 * may wait until results that were sent before have left; after TERN_ERR_TIMEOUT it goes on when
 * called again with the same arguments. */
TERN_API int tern_combine_send(tern_moe *moe, const struct tern_combine *args);
/* Waits for all ranks, then writes out[n][H] of combine_dtype, out_stride bytes from row to row (0:
 * dense), 16-byte aligned; tokens without experts get zeros. n: the tokens passed to dispatch_send.
 */
TERN_API int tern_combine_recv(tern_moe *moe, uint32_t slot, void *out, size_t out_stride);
/* Instead of both combine halves: gives the received rows back. All ranks do so in the same round.
 * The slot's next dispatch waits for all to have done it; in an elastic exchange this call does,
 * and after TERN_ERR_TIMEOUT goes on when called again: the round is over, or it is made again and
 * its rows come once more. */
TERN_API int tern_release(tern_moe *moe, uint32_t slot);

/* Elastic exchanges, after tern_group_view_change: 1 if other members make the slot's round again
 * that this rank has completed. It then takes part once more: dispatch with 0 tokens, experts of
 * *tag, which is the others' tern_dispatch.tag, and combine, or release if that one is released.
 * Its own round comes after that. 0: it owes none. */
TERN_API int tern_moe_owed(tern_moe *moe, uint32_t slot, uint64_t *tag);

/* Send and receive in one call. The arguments of both are checked before anything is sent. After
 * TERN_ERR_TIMEOUT it goes on where it was when called again with the same arguments. */
TERN_API int tern_dispatch(
	tern_moe *moe, const struct tern_dispatch *args, struct tern_received *received);
TERN_API int tern_combine(
	tern_moe *moe, const struct tern_combine *args, void *out, size_t out_stride);

/* ---- plans ------------------------------------------------------------------------------------
 *
 * A plan is where the rows of one round went. Kept, it outlives the round: other x can be
 * dispatched as that one was, and other y combined, any number of times and in any order, also
 * combined twice in a row, or dispatched again without a combine between (tern_release ends the
 * first).
 *
 *   tern_dispatch(moe, &args, &received);     a round; then, before its combine or release,
 *   tern_plan_create(moe, slot, &plan);       on every rank, each its own part
 *   ...
 *   again.plan = plan;                        topk_ids and topk_weights are NULL, nr_tokens is as
 *   tern_dispatch(moe, &again, &received);    it was; positions and weights are the plan's
 *   combine.plan = plan;                      with no round under way in the slot: y at the plan's
 *   tern_combine(moe, &combine, out, 0);      positions, weighted as then (or as combine says),
 *                                             into out
 *
 * A round with a plan is a round of its slot, any slot, and all ranks make it with their parts of
 * the same plan: who dispatches where others combine again gets TERN_ERR_PROTOCOL or
 * TERN_ERR_TIMEOUT. On CPUs the dispatch needs no counts in high throughput. A combine of a plan
 * waits until all ranks have begun it, as its first half would without: also in tern_combine_send,
 * which goes on after TERN_ERR_TIMEOUT when called again with the same arguments.
 *
 * In an elastic exchange a dispatch with a plan routes anew, with counts, and so makes the plan
 * whole in its view: positions are those of before where nobody has gone. A combine of a plan that
 * is not whole is TERN_ERR_STATE on all ranks. A round that is made again makes its plan again.
 */

/* Local. Between the slot's dispatch and its combine or release. The plan takes private memory
 * (tern_moe_memory), 8 bytes a route of this rank's tokens and a header for each row received,
 * until it is destroyed or its exchange is. On a device: for as many rows as could come, and what
 * destroyed plans leave is kept for others. *plan is never 0, and no other plan's of this process:
 * a plan that is gone, or another exchange's, is TERN_ERR_STATE. */
TERN_API int tern_plan_create(tern_moe *moe, uint32_t slot, uint64_t *plan);

/* What callers of other libraries keep of a round beside its plan, written by
 * tern_plan_create_beside: on a device by the kernel that makes the plan, to memory of the device.
 * NULL: not that. Positions without a row, and behind the last one, hold nothing of use. */
struct tern_plan_beside {
	size_t size TERN_SIZE_OF(tern_plan_beside); /* sizeof(struct tern_plan_beside) */
	uint64_t nr_rows; /* in: positions that wide_ids and tokens have; later ones are not told */
	int64_t *wide_ids; /* TERN_BY_SOURCE: [nr_rows][K] local expert ids of each row, -1: not
			      here */
	int32_t *tokens;   /* [nr_rows] tern_row.token of each row: its row in its source's x */
	int32_t *topk_ids; /* [n][K] ids of this rank's tokens, as they were dispatched; -1 where
			      they were none */
};

/* tern_plan_create, and what beside says. NULL: nothing. */
TERN_API int tern_plan_create_beside(
	tern_moe *moe, uint32_t slot, const struct tern_plan_beside *beside, uint64_t *plan);

/* Local. TERN_ERR_STATE also while a combine with it has begun and not returned 0. */
TERN_API int tern_plan_destroy(tern_moe *moe, uint64_t plan);

/* ---- before a dispatch ----------------------------------------------------------------------- */

/* How many of a rank's tokens go where, for callers that have to know before they dispatch: experts
 * are in contiguous blocks of equal size, one a rank. Ids that are none of them count for nothing.
 */
struct tern_routes {
	size_t size TERN_SIZE_OF(tern_routes); /* sizeof(struct tern_routes) */
	uint32_t nr_ranks;                     /* R */
	uint32_t nr_experts;     /* E, a multiple of R; E + R at most 12288 on a device */
	uint32_t topk;           /* K, 1 to TERN_MAX_TOPK */
	uint32_t nr_tokens;      /* n */
	const void *topk_ids;    /* [n][K], dense, in memory of the device */
	uint32_t topk_ids_bits;  /* 32 or 64; 0 means 32 */
	uint32_t device;         /* enum tern_device */
	void *stream;            /* of the current device, and on it; NULL: the default one */
	uint32_t *rank_tokens;   /* out: [R] tokens with an expert of the rank */
	uint32_t *expert_routes; /* out: [E] routes to the expert */
	uint8_t *in_rank;        /* out: [n][R] 1 where a token has an expert of the rank, else 0 */
	/* For who reads the counts on the host, with nothing else to wait for: */
	uint32_t *told;   /* out: [1 + R + E] in pinned memory of the host, or NULL: rank_tokens and
			     then expert_routes, behind told[0], which is stored last (release) */
	uint32_t told_as; /* what told[0] becomes */
	uint32_t *finished; /* with told, on a device: a word of its memory for the call's use */
};

/* On a device it returns before they are there. Out arrays but told are of the same memory as
 * topk_ids. */
TERN_API int tern_count_routes(const struct tern_routes *routes);

/* ---- on a device ------------------------------------------------------------------------------
 *
 * With tern_moe_config.device = TERN_DEVICE_CUDA the halves run on the device that is current for
 * the calling thread when tern_moe_create is called, and it has to be current for every later call
 * too. It needs libtern_cuda.so, wait_ms > 0, and that the devices of ranks on one node can map
 * each other's memory. Ranks on other nodes are reached through pinned host memory and the engine;
 * replica ranks have to be on one node. What differs:
 *
 * Halves.     Are put on the slot's stream and return at once. The order of calls is the same; so
 *             is the order on all streams together, per slot. Pointers are to device memory (or
 *             pinned host memory), are kept until the work on the stream is done, and are read
 *             then: x, topk_ids, topk_weights, scales and y belong to the library until the half
 *             has run. Where one call does both halves, into_x may not overlap x, nor out y.
 * Graphs.     All halves may be captured in a CUDA graph, also apart from each other, and replayed
 *             with other x, ids, weights and y at the same addresses. The epoch lives on the
 *             device. Replays of a slot's halves have to alternate as calls do.
 * Counts.     The host does not know them. All of tern_received's pointers are to device memory.
 *             offsets has two more entries: offsets[L] (TERN_BY_SOURCE: offsets[R]) is nr_rows, the
 *             next one extent. The fields nr_rows and extent say how many there can be at most.
 * Plans.      tern_plan_create puts a kernel on the slot's stream, and topk_ids and topk_weights
 *             belong to the library until it has run. It may be captured, behind its dispatch: each
 *             replay makes the plan anew, and graphs that were captured with it use what it is when
 *             they run. Such a plan, or any that a graph uses, takes memory until its exchange is
 *             destroyed. A dispatch with a plan has the plan's number of tokens, wherever
 *             tern_moe_set_nr_tokens_at looks; tern_dispatch.nr_tokens is what the plan's dispatch
 *             said. It exchanges counts like any other.
 * Ids.        Are read by kernels alone. One out of range gets no route, and one named twice in a
 *             row gets two results from one row; the round goes on, and tern_moe_status returns
 *             TERN_ERR_INVALID, once.
 * Waiting.    Happens in kernels, for at most wait_ms each. One that expires ends the exchange: all
 *             kernels from then on return at once, and outputs are undefined. The next call on the
 *             exchange, of whatever kind that tells of rounds or begins one or changes a setting,
 *             returns TERN_ERR_TIMEOUT, or TERN_ERR_PEER_DEAD if a peer's process has ended, or the
 *             network to it; halves and tern_moe_status go on to return it. A wait for a peer that
 *             left, or whose call has returned an error, ends at once, with TERN_ERR_PEER_LEFT, and
 *             one for a peer whose process has ended, with TERN_ERR_PEER_DEAD, some ms later. A
 *             release where a peer combines is such a wait, too.
 * Peers.      What a peer has written is looked at before a kernel follows it: a number that no
 *             correct peer writes ends the exchange in the same way, with TERN_ERR_PROTOCOL; its
 *             peers get TERN_ERR_PEER_LEFT.
 * Elastic.    When members have to change, all waits of kernels end within some ms, also in replays
 *             of graphs. The next call, or tern_moe_status, returns TERN_ERR_MEMBERS. Before
 *             tern_group_view_change all that was put on streams is waited for, there. Afterwards
 *             graphs are replayed as they are. *tag of tern_moe_owed is the number of the slot's
 *             round that is made next, from 0, whatever it returns, as a graph has no tags; rounds
 *             that are made again keep theirs. A rank's own results are good of all rounds before
 *             it, and where it owes that one to others of that one, too. An owed round may be a
 *             graph's replay with a number of tokens of 0 (tern_moe_set_nr_tokens_at). A wait that
 *             has expired ends nothing for good: calls return TERN_ERR_TIMEOUT until the view is
 *             changed, for instance without the one that was waited for (tern_group_propose).
 *             Replays that come while experts are lost do nothing. tern_moe_place waits for the
 *             device, and whether ranks have the same tables is not looked at. In low latency what
 *             the next change needs is made ready in tern_moe_status and tern_group_allgather, in
 *             some ms, once for each change: call one of them now and then, or the next change
 *             takes as long as the driver does, some 100 ms.
 * Statistics. Are counted by kernels, of graphs' replays like of calls: they say how far the device
 *             has got, so wait for the streams first. Asking waits for no kernel, and copies a few
 *             KB from the device. Bytes are those that are stored for rows and results, with what
 *             they carry besides, without plans, counts and floats beside results. A round over its
 *             capacity is none.
 * Leaving.    After the last round, wait for the stream, then destroy; where ranks of one process
 *             share a device, when all of them have. An exchange destroyed in the middle of a round
 *             or after a failure keeps its window allocated until the process ends, since peers may
 *             still write to it.
 */

/* Gates. With tern_moe_config.gate_rows a kernel that is put on the slot's stream behind the
 * dispatch by programmatic dependent launch may read rows while others still come, and the combine
 * may take rows of y while others are still made. tern_device.cuh has what such kernels call:
 *
 *   tern_dispatch(moe, &d, &r);                    lets the next kernel start at once
 *   gate_up<<<..., dependent launch>>>(gate, ...)  tern_counts, tern_wait_rows for each tile
 *   down<<<..., dependent launch>>>(gate, ...)     tern_tile_done for each tile of y
 *   combine.gated = marks of a tile; tern_combine(moe, &combine, out, 0);
 *
 * A kernel that reads rows so ends, in at least one of its threads, behind a griddepcontrol.wait:
 * else what comes behind it would not be behind the dispatch. The kernel in front of a gated
 * combine lets it start (griddepcontrol.launch_dependents) when such a wait of its own is over, or
 * does not ask for it: then the combine starts behind its end, as in high throughput it always does
 * between nodes. Blocks that wait for rows take no SM that the dispatch needs, as its blocks are
 * there before theirs. Not in TERN_BY_SOURCE and not elastic, x of BF16 or as it travels; nodes of
 * at most 64 ranks in high throughput, if there are several. `gated` is for results of BF16. */
struct tern_gate {
	size_t size TERN_SIZE_OF(tern_gate); /* sizeof(struct tern_gate) */
	uint32_t nr_local;                   /* L */
	uint32_t tile_rows;                  /* gate_rows */
	uint32_t tiles;                      /* of an expert, at most */
	uint32_t whole;                      /* what each round adds to a tile's word */
	uint64_t wait_ns;                    /* longest wait */
	const uint32_t *counts;              /* [L] rows of each local expert; all on the device */
	const uint64_t *offsets;             /* [L] their first positions */
	const uint32_t *words;               /* [2] rounds begun, and counted */
	const uint32_t *ready;               /* [L][tiles] */
	uint32_t *done;                      /* [L][tiles] */
	const uint32_t *failed;              /* not 0: the exchange has ended */
};

/* Of a slot, for as long as the exchange lives. TERN_ERR_STATE without gate_rows. */
TERN_API int tern_moe_gate(tern_moe *moe, uint32_t slot, struct tern_gate *gate);

/* The stream (cudaStream_t) for what is called next on that slot; NULL, the default: the legacy
 * default stream. */
TERN_API int tern_moe_set_stream(tern_moe *moe, uint32_t slot, void *stream);
/* Where kernels find the number of tokens, on the device: at most what tern_dispatch.nr_tokens
 * says, which sizes the launch. NULL, the default: exactly nr_tokens. */
TERN_API int tern_moe_set_nr_tokens_at(tern_moe *moe, uint32_t slot, const uint32_t *nr_tokens);
/* Most SMs that a half may take. 0: as many as are fastest. Changes nothing of the mode: many
 * tokens on few SMs want high throughput, which TERN_AUTO takes if it hears of them in
 * tern_moe_config.nr_sms. */
TERN_API int tern_moe_set_sms(tern_moe *moe, uint32_t nr_sms);

/* ---- what happened --------------------------------------------------------------------------- */

enum tern_phase {
	TERN_PHASE_COUNTS = 0,
	TERN_PHASE_DISPATCH = 1,
	TERN_PHASE_COMBINE = 2
};

/* 0, or the error that ended the exchange, or, on a device, what kernels have found since: ids that
 * are none (reported once). Waits for nobody; it may take some ms, on a device, once for each
 * change of members: see "Elastic" there. */
TERN_API int tern_moe_status(tern_moe *moe);

/* Who was waited for when the last wait of this exchange failed. */
struct tern_wait_report {
	size_t size TERN_SIZE_OF(tern_wait_report); /* sizeof(struct tern_wait_report) */
	int32_t rank;                               /* who waited */
	int32_t peer;        /* for whom: the first one missing; -1: no wait has failed */
	uint32_t nr_missing; /* how many ranks had not arrived */
	uint32_t slot;
	int32_t phase; /* enum tern_phase */
	uint32_t epoch_expected;
	uint32_t epoch_seen; /* of that peer's word */
	uint32_t count_seen; /* rows that the peer's word announced, when epoch_seen ==
				epoch_expected */
	uint64_t arrived;    /* ranks that had arrived */
	uint64_t expected;   /* ranks that should have */
	uint64_t waited_ns;
	int32_t error; /* enum tern_error that the wait returned */
	int32_t reserved;
};
TERN_API int tern_moe_wait_report(const tern_moe *moe, struct tern_wait_report *report);

/* Since creation or the last reset, on this rank. */
struct tern_stats {
	size_t size TERN_SIZE_OF(tern_stats); /* sizeof(struct tern_stats) */
	uint64_t rounds;                      /* dispatches completed */
	uint64_t tokens;         /* passed to dispatch, own share only with replica_ranks */
	uint64_t routes;         /* (token, k) pairs with an expert */
	uint64_t rows;           /* (token, rank) pairs sent, self included */
	uint64_t rows_away;      /* of these, to other ranks */
	uint64_t tokens_away;    /* tokens with at least one row to another rank */
	uint64_t dispatch_bytes; /* stored for ranks' receive sides by dispatch, self included */
	uint64_t combine_bytes;  /* stored for homes by combine, self included */
	uint64_t rows_received;
	uint64_t engine_bytes; /* written to ranks that are not mapped: rows once for each node in
				  high-throughput mode, on a device in both, headers and counts
				  included */
};
TERN_API int tern_moe_stats(const tern_moe *moe, struct tern_stats *stats);
/* Routes that this rank's tokens took to each logical expert: counts[E]. nr must be E. */
TERN_API int tern_moe_expert_load(const tern_moe *moe, uint64_t *counts, uint32_t nr);
TERN_API int tern_moe_stats_reset(tern_moe *moe);

#ifdef __cplusplus
}
#endif
#endif
