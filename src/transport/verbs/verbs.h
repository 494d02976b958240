/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs transport's inside: RDMA devices through libibverbs alone.
 *
 *   verbs.c     opening and closing
 *   load.c      libibverbs, loaded when it is needed
 *   settings.c  what a site may have to set
 *   device.c    which device, port and GID
 *   connection.c      queue pairs: made, brought up, given up
 *   greet.c     how two ranks tell each other of their queue pairs: datagrams
 *   peers.c     addresses, connecting
 *   memory.c    registered memory
 *   data.c      write, send, credits
 *   poll.c      completions, failures
 */
#ifndef TERN_TRANSPORT_VERBS_VERBS_H
#define TERN_TRANSPORT_VERBS_VERBS_H

#include <infiniband/verbs.h>

#include "transport/presence.h"
#include "transport/transport.h"

#define VERBS_CONNECTION_SLOTS 256u /* most requests of a connection under way */
#define VERBS_CHAIN 8u              /* most requests that wait for one doorbell */
#define VERBS_MESSAGES 16u          /* messages to a peer that it has not yet taken */
#define VERBS_GREETINGS 32u
#define VERBS_GRH_BYTES 40u /* in front of each datagram */

/* ---- libibverbs ------------------------------------------------------------------------------ */

struct verbs_library {
	struct ibv_device **(*get_device_list)(int *);
	void (*free_device_list)(struct ibv_device **);
	const char *(*get_device_name)(struct ibv_device *);
	struct ibv_context *(*open_device)(struct ibv_device *);
	int (*close_device)(struct ibv_context *);
	int (*query_device)(struct ibv_context *, struct ibv_device_attr *);
	int (*query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *);
	int (*query_gid_ex)(
		struct ibv_context *, uint32_t, uint32_t, struct ibv_gid_entry *, uint32_t, size_t);
	int (*query_pkey)(struct ibv_context *, uint8_t, int, __be16 *);
	struct ibv_pd *(*alloc_pd)(struct ibv_context *);
	int (*dealloc_pd)(struct ibv_pd *);
	struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int);
	struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int);
	struct ibv_mr *(*reg_dmabuf_mr)(
		struct ibv_pd *, uint64_t, size_t, uint64_t, int, int); /* NULL: it has none */
	int (*dereg_mr)(struct ibv_mr *);
	struct ibv_cq *(*create_cq)(
		struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
	int (*destroy_cq)(struct ibv_cq *);
	struct ibv_srq *(*create_srq)(struct ibv_pd *, struct ibv_srq_init_attr *);
	int (*destroy_srq)(struct ibv_srq *);
	struct ibv_qp *(*create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *);
	int (*modify_qp)(struct ibv_qp *, struct ibv_qp_attr *, int);
	int (*destroy_qp)(struct ibv_qp *);
	struct ibv_ah *(*create_ah)(struct ibv_pd *, struct ibv_ah_attr *);
	int (*destroy_ah)(struct ibv_ah *);
	int (*get_async_event)(struct ibv_context *, struct ibv_async_event *);
	void (*ack_async_event)(struct ibv_async_event *);
	struct ibv_qp_ex *(*qp_to_qp_ex)(struct ibv_qp *);
	const char *(*wc_status_str)(enum ibv_wc_status);
	const char *(*event_type_str)(enum ibv_event_type);
};

int verbs_load(struct verbs_library *library);

/* ---- settings, devices ----------------------------------------------------------------------- */

enum verbs_post {
	VERBS_POST_BEST,
	VERBS_POST_CLASSIC,
	VERBS_POST_EXTENDED
};

/* TERN_VERBS_...; -1: the transport's choice. docs/transports.md has them. */
struct verbs_settings {
	int port, gid_index, mtu, traffic_class, service_level, pkey_index, timeout, retry,
		rnr_retry, min_rnr_timer, relaxed_ordering, chain, connect_ms;
	enum verbs_post post;
};

int verbs_settings_read(struct verbs_settings *settings);

/* A port that can be used, with the GID that was chosen for it; or one that cannot, and why. */
struct verbs_port {
	char device[64];
	char interface[16]; /* of the network, on RoCE */
	char address[48];   /* of the GID */
	uint8_t port;
	uint32_t gid_index;
	struct ibv_gid_entry gid;
	struct ibv_port_attr attr;
	int numa_node;    /* -1: unknown */
	char reason[120]; /* why not; empty: usable */
};

/* Asks one port. */
void verbs_port_ask(const struct verbs_library *library, struct ibv_context *context, uint8_t port,
	const struct verbs_settings *settings, const char *address, struct verbs_port *out);
/* The device and port of that name ("mlx5_0", "mlx5_0:2", an interface or its address; NULL: the
 * best), opened. */
int verbs_device_open(const struct verbs_library *library, const char *name,
	const struct verbs_settings *settings, struct ibv_context **context,
	struct verbs_port *port);

/* ---- connections ----------------------------------------------------------------------------- */

/* What was posted on a connection and has not been reported. Requests of a connection end in the
 * order of posting. */
struct verbs_slot {
	uint64_t cookie;
	uint32_t message; /* the buffer, for a message */
	uint8_t kind;     /* enum verbs_kind */
	bool signalled;   /* the engine wants to hear of it */
};

enum verbs_kind {
	VERBS_WRITE = 1,
	VERBS_CREDIT,
	VERBS_MESSAGE
};

/* A peer's two: messages and credits may not wait behind bulk. */
enum verbs_connection_kind {
	VERBS_DATA,
	VERBS_CONTROL,
	VERBS_CONNECTIONS
};

/* One reliable queue pair. */
struct verbs_connection {
	struct verbs_connection *next; /* all of the transport's */
	struct ibv_qp *qp;
	struct ibv_qp_ex *extended; /* NULL: classic post */
	uint32_t peer;
	uint16_t session; /* in each wr_id */
	enum verbs_connection_kind kind;
	bool retired;   /* its peer has none or another now */
	bool forgotten; /* and what still comes through it is of nobody */
	uint64_t retired_ns;
	uint32_t inline_bytes;
	uint32_t posted, ended; /* of all time; slots lie between them, at their number modulo
				   nr_slots */
	uint32_t nr_slots;
	uint32_t told; /* slots before this one have been reported as failed; looked at when the
			  peer is down */
	uint32_t nr_unsignalled; /* behind the last one that will be reported */
	uint32_t nr_held;
	struct ibv_send_wr held[VERBS_CHAIN]; /* wait for the doorbell */
	struct ibv_sge held_sges[VERBS_CHAIN];
	struct verbs_slot slots[];
};

/* ---- peers ----------------------------------------------------------------------------------- */

enum verbs_state {
	VERBS_UNKNOWN,
	VERBS_GREETING, /* queue pairs are made; the peer's are not known */
	VERBS_HALF,     /* both are known here; not known whether the peer knows */
	VERBS_UP,
	VERBS_DOWN
};

/* Written into the sender's memory by the target: how much it has taken. The second half is the
 * complement of the first, so that a half-written one is seen. */
struct verbs_credit {
	uint32_t immediates, messages;
	uint32_t not_immediates, not_messages;
};

/* A datagram: what a rank has to know of another's end of a connection. */
struct verbs_hello {
	uint32_t magic, version;
	uint32_t from, is_up;
	uint64_t identity_from, identity_to; /* of the ranks: a successor has another */
	uint64_t session_from, session_to;   /* of the connection, ascending; to: 0 as long as it is
						not known */
	uint32_t qpn[VERBS_CONNECTIONS], psn[VERBS_CONNECTIONS];
	uint32_t mtu, window, message_bytes, credit_key;
	uint64_t credit_address;
};

/* What ranks tell each other before: where datagrams go. */
struct verbs_address {
	uint32_t magic, version;
	uint64_t identity;
	uint8_t gid[16];
	uint32_t qpn, qkey;
	uint16_t lid;
	uint8_t on_ethernet, reserved;
};

struct verbs_peer {
	enum verbs_state state;
	struct verbs_address address;
	struct ibv_ah *ah;
	struct verbs_connection *connections[VERBS_CONNECTIONS];
	uint64_t session, session_theirs;
	uint64_t began_ns, greet_ns, greet_pause_ns;
	uint64_t credit_address; /* where the peer reads its credits */
	uint32_t credit_key;
	uint32_t window, message_bytes; /* what the peer takes */
	uint32_t immediates_out, messages_out, immediates_taken, messages_taken; /* sent; of these,
										    taken by the
										    peer */
	uint32_t immediates_in, messages_in, immediates_told, messages_told;     /* taken here; of
										    these, told to the
										    peer */
	bool credit_under_way, credit_due;
	const char *broken; /* an event said so: nothing may be posted any more */
	bool reported;
	int error;
	char text[240];
};

struct transport_region {
	struct ibv_mr *mr;
	uint64_t base, bytes;
	bool on_device; /* a GPU's: this process cannot read it */
	struct transport_region *next, **at;
};

/* ---- the transport --------------------------------------------------------------------------- */

/* A message buffer that goes back at the next poll, and whose message it had. */
struct verbs_given {
	uint32_t number, peer;
	uint16_t session;
	bool counts; /* the message used one of the session's credits */
};

struct verbs_lookup {
	uint32_t qpn;
	struct verbs_connection *connection;
};

struct verbs {
	struct transport base;
	struct verbs_library library;
	struct verbs_settings settings;
	struct ibv_context *context;
	struct verbs_port port;
	struct ibv_device_attr device;
	struct ibv_pd *pd, *parent;
	struct ibv_td *td;
	struct ibv_cq *send_cq, *receive_cq, *greet_cq;
	struct ibv_srq *immediate_srq, *message_srq;
	struct ibv_qp *greet_qp;
	uint64_t identity, next_session;
	uint32_t self, nr_peers, depth, nr_slots, inline_bytes, message_bytes, buffer_bytes, window;
	bool extended;
	struct verbs_peer *peers;
	struct verbs_connection *connections;
	struct verbs_lookup *lookup; /* by queue pair number, open addressing */
	uint32_t nr_lookup, nr_connections, nr_retired;

	struct transport_region *regions;
	uint8_t *pinned; /* one registered block: greetings, messages out, messages in, credits */
	uint64_t pinned_bytes;
	struct ibv_mr *pinned_mr;
	uint8_t *greetings_out, *greetings_in, *messages_out, *messages_in;
	struct verbs_credit *credits_in, *credits_out; /* one for each peer */

	uint32_t nr_sends, nr_free_sends, *free_sends;
	uint32_t nr_receives; /* message buffers */
	struct verbs_given *given_out;
	uint32_t nr_given_out;
	uint32_t nr_immediates_used; /* receives to be posted again */
	uint32_t greetings_posted, greetings_done;
	bool greet_broken; /* a datagram found no way out, and took its queue pair with it */

	uint32_t nr_unsignalled; /* of all connections */
	uint32_t nr_under_way, nr_waiting, nr_down, nr_held_connections, nr_credits_due, nr_polls;
	struct verbs_connection **held_connections;
	uint64_t looked_ns, asked_ns;
	const char *port_trouble;
};

static inline struct verbs *verbs_of(struct transport *transport)
{
	return (struct verbs *)transport;
}

/* The number of a request: connection's peer, session and kind, and its place. */
static inline uint64_t verbs_wr_id(const struct verbs_connection *connection, uint32_t number)
{
	return (uint64_t)connection->peer << 48 | (uint64_t)(connection->session & 0x7fff) << 33 |
	       (uint64_t)connection->kind << 32 | number;
}

/* device.c */
void verbs_address_text(const union ibv_gid *gid, char *text, size_t room);

/* connection.c */
int verbs_connection_make(struct verbs *v, uint32_t peer, enum verbs_connection_kind kind,
	struct verbs_connection **out);
int verbs_connection_bring_up(struct verbs *v, struct verbs_connection *connection,
	const struct verbs_hello *theirs, uint32_t psn_ours);
void verbs_connection_retire(struct verbs *v, struct verbs_connection *connection);
void verbs_connection_unhold(struct verbs *v, struct verbs_connection *connection);
void verbs_connection_free(struct verbs *v, struct verbs_connection *connection);
void verbs_connections_reap(struct verbs *v, uint64_t now);
struct verbs_connection *verbs_connection_find(const struct verbs *v, uint32_t qpn);
void verbs_fill_route(
	const struct verbs *v, const struct verbs_address *to, struct ibv_ah_attr *ah);
uint32_t verbs_psn(const struct verbs *v, uint64_t session, enum verbs_connection_kind kind);

/* greet.c */
int verbs_greet_open(struct verbs *v);
void verbs_greet_say(struct verbs *v, uint32_t peer);
void verbs_greet_poll(struct verbs *v);
void verbs_greet_timers(struct verbs *v, uint64_t now);
int verbs_connect_self(struct verbs *v);

/* peers.c */
int verbs_address(struct transport *transport, void *address, uint32_t *bytes);
int verbs_connect(struct transport *transport, uint32_t peer, const void *address, uint32_t bytes);
int verbs_disconnect(struct transport *transport, uint32_t peer);
int verbs_peer_begin(struct verbs *v, uint32_t peer);
void verbs_peer_fails(struct verbs *v, uint32_t peer, int error, const char *text);

/* memory.c */
int verbs_reg(struct transport *transport, void *base, uint64_t bytes,
	struct transport_region **region, struct transport_key *key);
void verbs_dereg(struct transport *transport, struct transport_region *region);

/* data.c */
int verbs_write(struct transport *transport, const struct transport_write *write);
int verbs_send(struct transport *transport, uint32_t peer, const void *data, uint32_t bytes);
void verbs_flush(struct verbs *v);
void verbs_flush_connection(struct verbs *v, struct verbs_connection *connection);
void verbs_return_credits(struct verbs *v);
void verbs_credit_is_due(struct verbs *v, uint32_t peer);
int verbs_post_immediates(struct verbs *v, uint32_t nr);
int verbs_post_buffers(struct verbs *v, const struct verbs_given *given, uint32_t nr);

/* poll.c */
int verbs_poll(struct transport *transport, struct transport_event *events, int max);

#endif
