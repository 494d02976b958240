/* SPDX-License-Identifier: Apache-2.0 */
/* Two-sided messages, and the control messages between engines: heartbeats and goodbyes. */
#ifndef TERN_ENGINE_MESSAGE_H
#define TERN_ENGINE_MESSAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "tern_engine.h"

enum message_kind {
	MESSAGE_DATA = 1,
	MESSAGE_HEARTBEAT = 2, /* also gives credits back */
	MESSAGE_GOODBYE = 3,
	MESSAGE_GOODBYE_SEEN = 4,
	MESSAGE_MORE = 5 /* writes without a word follow: stay_awake in inside.h */
};

struct message_header {
	uint32_t kind;
	uint32_t credits; /* messages of the receiver's that were read since the last header */
	uint32_t bytes;
	uint32_t reserved;
};

/* One that waits to be sent. */
struct outgoing {
	uint32_t next; /* of the same peer */
	uint32_t completion;
	struct message_header header; /* goes out with the bytes behind it */
	uint8_t data[];
};

int messages_open(tern_engine *engine);
void messages_close(tern_engine *engine);
struct outgoing *message_at(const tern_engine *engine, uint32_t number);
void message_free(tern_engine *engine, uint32_t number);

void message_queue(tern_engine *engine, uint32_t number, uint32_t peer, uint32_t completion);
/* A heartbeat or a goodbye, at once. False: the network took none. */
bool message_control(tern_engine *engine, uint32_t peer, enum message_kind kind);
/* Heartbeats to those of whose messages half the credits were read. */
void messages_return_credits(tern_engine *engine);
void messages_peer_down(tern_engine *engine, uint32_t peer);

/* How many went or ended; below 0: the peer is to be lost, with this error and its text. */
int post_messages(tern_engine *engine, uint32_t peer);

/* False: the peer has sent more or longer ones than it had credits for. */
bool message_arrived(tern_engine *engine, uint32_t peer, const void *data, uint32_t bytes);

#endif
