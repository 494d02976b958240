/* SPDX-License-Identifier: Apache-2.0 */
/* What a newcomer and a member's door say to each other: one message, one answer of the same kind,
 * over a socket of one machine, or over TCP; join.h has the order. */
#ifndef TERN_GROUP_JOIN_WIRE_H
#define TERN_GROUP_JOIN_WIRE_H

#include "engine/engine.h"
#include "group/agreement.h"
#include "group/far_socket.h"
#include "group/introduce.h"
#include "group/join.h"

#define JOIN_MAGIC 0x4a4e4555u
#define JOIN_KEY "tern.member.%d" /* in the rendezvous */
#define JOIN_MOST_EXCHANGES 256
#define JOIN_TEXT 512

enum join_kind {
	JOIN_ENTER = 1,
	JOIN_LINE,
	JOIN_CONNECT,
	JOIN_SETTINGS,
	JOIN_WINDOW,
	JOIN_KEYS,
	JOIN_READY,
	JOIN_LOOK,
	JOIN_GO /* not answered */
};

/* In an answer, beside errors. */
#define JOIN_LATER 1 /* another one is about to take the place, or it is just becoming vacant */

/* In the rendezvous, of each member. */
struct join_card {
	uint64_t abi;
	char node[NODE_TEXT];
	struct fd_passing_address address; /* on the same node; its secret is asked for by both */
	struct far_address far;            /* from others */
};

_Static_assert(sizeof(struct join_card) <= 256, "`tern run` keeps values of 256 bytes");

struct join_message {
	uint32_t magic, kind;
	int32_t rc; /* of an answer */
	uint32_t nr;
	uint64_t nonce;  /* of the newcomer */
	uint64_t number; /* of an exchange; READY's answer: of the last that was made */
	uint8_t secret[FD_PASSING_KEY_BYTES];
	union {
		struct {
			struct introduction who;
			uint64_t silence_ms;
			struct view view;                      /* a member's */
			uint64_t numbers[JOIN_MOST_EXCHANGES]; /* likewise: `nr` of them */
			uint16_t node_of[VIEW_MOST_RANKS];     /* likewise: of each place */
			uint32_t has_engine, network;          /* likewise: that leads to it */
			struct engine_networks networks;
		} enter;
		int32_t rank;                          /* LINE: the newcomer's */
		struct engine_address engine;          /* CONNECT */
		uint64_t settings[JOIN_MOST_SETTINGS]; /* `nr` of them */
		uint32_t prefix;                       /* SETTINGS' answer: of immediates */
		struct tern_descriptor window;         /* KEYS: for the other to write there */
		struct view view;                      /* LOOK's answer */
		char text[JOIN_TEXT];                  /* with an error */
	};
};

/* A message that comes in pieces, from another node. */
struct join_coming {
	size_t nr;
	struct join_message message;
};

/* All of it, or false. */
bool join_send(
	int socket, bool is_far, const struct join_message *message, const int *fds, int nr_fds);

/* Into `message`. False: not yet; coming is then kept for the next call. came->bytes 0: the other
 * has closed. coming: of a socket from another node; NULL: it is of this one. */
bool join_receive(int socket, struct join_coming *coming, struct join_message *message,
	struct local_message *came);

#endif
