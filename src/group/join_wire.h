/* SPDX-License-Identifier: Apache-2.0 */
/* What a newcomer and a member's door say to each other: one message, one answer of the same kind,
 * over a socket of one machine; join.h has the order. */
#ifndef TERN_GROUP_JOIN_WIRE_H
#define TERN_GROUP_JOIN_WIRE_H

#include "group/agreement.h"
#include "group/introduce.h"
#include "group/join.h"

#define JOIN_MAGIC 0x4a4e4554u
#define JOIN_KEY "tern.member.%d" /* in the rendezvous */
#define JOIN_MOST_EXCHANGES 256
#define JOIN_TEXT 512

enum join_kind {
	JOIN_ENTER = 1,
	JOIN_SETTINGS,
	JOIN_WINDOW,
	JOIN_READY,
	JOIN_GO
};

/* In an answer, beside errors. */
#define JOIN_LATER 1 /* another one is about to take the place, or it is just becoming vacant */

/* In the rendezvous, of each member. */
struct join_card {
	uint64_t abi;
	struct fd_passing_address address;
};

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
		} enter;
		uint64_t settings[JOIN_MOST_SETTINGS]; /* `nr` of them */
		char text[JOIN_TEXT];                  /* with an error */
	};
};

#endif
