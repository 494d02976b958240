/* SPDX-License-Identifier: Apache-2.0 */
/* The libfabric transport's inside.
 *
 *   ofi.c    opening: which provider, which NIC; endpoint, queues; closing
 *   facts.c  what is known of each provider, as found and not as claimed; libfabric itself, loaded
 * when it is needed
 *   ops.c    operations under way and their buffers
 *   peers.c  addresses, connecting, memory
 *   data.c   write, send
 *   poll.c   completions, failures
 */
#ifndef TERN_TRANSPORT_OFI_OFI_H
#define TERN_TRANSPORT_OFI_OFI_H

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include "transport/transport.h"

/* copied into the operation's own registered buffer, so no provider's limit applies */
#define OFI_INLINE_BYTES 256
#define OFI_LANDING_BYTES 8 /* of a greeting */
#define OFI_SENDS 64        /* least; more with many peers */
/* under way to one peer: who takes nothing keeps nobody else from hearing of us */
#define OFI_PEER_SENDS 16
#define OFI_GREETINGS 8                            /* the same of greetings */
#define OFI_LOST_NS 1000000000u                    /* without a connection a peer is gone */
#define OFI_LOST_AT_FIRST_NS (10ull * OFI_LOST_NS) /* likewise, before it stands */
#define OFI_RECEIVES 64                            /* least; more with many peers */

/* ---- libfabric, loaded at run time; everything else it has is reached through tables of its
 * objects  */

struct ofi_library {
	int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *,
		struct fi_info **);
	void (*freeinfo)(struct fi_info *);
	struct fi_info *(*dupinfo)(const struct fi_info *);
	int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
	const char *(*strerror)(int);
	uint32_t (*version)(void);
};

int ofi_load(struct ofi_library *library);

/* ---- what is known of a provider ------------------------------------------------------------- */

struct ofi_facts {
	const char *provider;
	uint32_t caps;        /* enum transport_caps that hold */
	uint64_t ask_caps;    /* more than FI_MSG and FI_RMA to ask for */
	uint32_t least_bytes; /* that go in place of none, to the peer's landing */
	bool peer_to_peer;    /* reads and writes a GPU's memory by itself, and without waiting for
				 its kernels, as its documentation says */
	bool reconnects;      /* quietly: a dead peer looks like a full queue */
	bool by_interface; /* a device is an interface or its address; else it is a domain's name */
	bool tested;
};

const struct ofi_facts *ofi_facts(const char *provider); /* never NULL */

/* ---- operations ------------------------------------------------------------------------------ */

enum ofi_kind {
	OFI_WRITE = 1,
	OFI_SEND,
	OFI_HELLO,
	OFI_RECEIVE
};

struct ofi_op {
	struct fi_context2 context; /* the provider's, first: a completion's context is the
				       operation */
	struct ofi_op *next;        /* of those that are free, or wait to be posted again */
	uint8_t *buffer;            /* registered */
	void *desc;
	enum ofi_kind kind;
	uint32_t peer;
	uint64_t cookie;
	bool busy;
	bool signalled;
	bool told; /* the engine has been told that it failed, or wants to hear no more of it; the
		      provider has it still */
};

struct ofi_slab {
	struct ofi_slab *next;
	struct fid_mr *mr;
	uint8_t *buffers;
	uint64_t bytes;
	uint32_t nr_ops;
	struct ofi_op ops[];
};

/* A pool of operations of one kind. Grows on connecting only. */
struct ofi_pool {
	struct ofi_slab *slabs;
	struct ofi_op *free;
	uint32_t buffer_bytes, nr_abandoned;
};

/* ---- peers and the transport ----------------------------------------------------------------- */

enum ofi_state {
	OFI_UNKNOWN,
	OFI_GREETING,
	OFI_UP,
	OFI_DOWN
};

/* What comes in front of each message. */
struct ofi_header {
	uint32_t kind; /* OFI_SEND */
	uint32_t sender;
	uint64_t secret;  /* of the receiver's address: anybody on the network can send a message */
	uint64_t senders; /* of the sender's: what one has left behind is not another's that has
			     come in its place */
};

struct ofi_key {
	uint64_t address, key;
};

struct ofi_peer {
	fi_addr_t address;
	struct ofi_key landing; /* where greetings and writes without bytes go */
	uint64_t secret;
	enum ofi_state state;
	bool greeted;          /* the hello has been posted */
	bool moved;            /* something completed since the last look */
	uint32_t nr_under_way; /* of these: */
	uint32_t nr_sends, nr_greetings;
	uint64_t greeted_ns; /* when the last greeting but the first was posted */
	uint64_t refused_ns; /* since when nothing can be posted, or no greeting arrives; 0: all is
				well */
	bool reported;       /* DOWN, and the engine knows */
	int error;
	char text[120];
};

struct transport_region {
	struct fid_mr *mr;
	bool on_device; /* a GPU's: this process cannot read it */
	void *desc;
	uint64_t base, bytes;
	struct transport_region *next, **at; /* all of them, for close */
};

struct ofi {
	struct transport base;
	struct ofi_library library;
	const struct ofi_facts *facts;
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_ep *ep;
	struct fid_cq *cq;
	struct fid_av *av;
	struct ofi_peer *peers;
	uint32_t self, nr_peers, nr_greeting, nr_down;
	uint32_t message_bytes, nr_under_way, nr_polls;
	bool moves_devices; /* memory of GPUs */
	uint64_t secret, looked_ns;
	struct ofi_pool writes, sends, greetings, receives;
	struct ofi_op *to_post; /* receives that were given out or could not be posted */
	struct transport_region *regions;
	uint8_t landing_bytes[64];
	struct transport_region *landing;
	struct transport_key landing_key;
	char text[200]; /* of the last failure reported */
};

static inline struct ofi *ofi_of(struct transport *transport)
{
	return (struct ofi *)transport;
}

/* ofi.c: for a failed call of libfabric, its negative code in rc */
int ofi_fail(const struct ofi *o, int64_t rc, const char *what);
bool ofi_is_death(int64_t err); /* positive: the connection or the process behind it is gone */

/* ops.c */
int ofi_pool_grow(struct ofi *o, struct ofi_pool *pool, uint32_t nr_ops);
void ofi_pool_free(struct ofi_pool *pool);
struct ofi_op *ofi_op_take(struct ofi *o, enum ofi_kind kind, uint32_t peer);
void ofi_op_return(struct ofi *o, struct ofi_op *op);
void ofi_op_posted(struct ofi *o, struct ofi_op *op);
void ofi_op_ended(struct ofi *o, struct ofi_op *op); /* and is returned */

/* peers.c */
int ofi_address(struct transport *transport, void *address, uint32_t *bytes);
int ofi_connect(struct transport *transport, uint32_t peer, const void *address, uint32_t bytes);
int ofi_disconnect(struct transport *transport, uint32_t peer);
int ofi_reg(struct transport *transport, void *base, uint64_t bytes,
	struct transport_region **region, struct transport_key *key);
void ofi_dereg(struct transport *transport, struct transport_region *region);
int ofi_draw(uint64_t *secret); /* 64 random bits */
int ofi_reg_mr(struct ofi *o, const struct fi_mr_attr *attr, struct fid_mr **mr);
void ofi_peer_fails(struct ofi *o, uint32_t peer, int error, const char *text);

/* data.c */
int ofi_write(struct transport *transport, const struct transport_write *write);
int ofi_send(struct transport *transport, uint32_t peer, const void *data, uint32_t bytes);
int ofi_greet(struct ofi *o, uint32_t peer);
void ofi_post_receives(struct ofi *o);

/* poll.c */
int ofi_poll(struct transport *transport, struct transport_event *events, int max);

#endif
