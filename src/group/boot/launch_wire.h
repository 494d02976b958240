/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank and its launcher (`tern run`) say to each other over the Unix stream socket that the
 * rank inherited.    rank 0  --- GATHER   | payload ------------>  launcher     one gathering at a
 * time on a socket: a rank asks, and   rank 1  --- GATHER   | payload ------------>
 * asks nothing more until it has its answer. The launcher   rank 0 <--- GATHERED | payloads 0, 1,
 * ... --               answers when all ranks have asked, or refuses with a   rank 1 <--- REFUSED
 * | text ----------------               text for people.  Several boots of one process share the
 * socket. The first request of a boot says boot 0; the launcher numbers it, and all answers carry
 * the number. Ranks whose boots or sequences differ have called in different orders: refused.  A
 * rank that stops waiting leaves the stream at an unknown place, so it shuts the socket down: its
 * process can gather no more, and the launcher refuses the others. Both ends are on one machine, so
 * fields are in its byte order. */
#ifndef TERN_GROUP_BOOT_LAUNCH_WIRE_H
#define TERN_GROUP_BOOT_LAUNCH_WIRE_H

#include <stdint.h>

#define LAUNCH_MAGIC 0x4e524554u /* "TERN" */
#define LAUNCH_VERSION 2
#define LAUNCH_MAX_ALL ((uint64_t)1 << 30) /* bytes of all ranks' payloads of one gathering */
#define LAUNCH_MAX_TEXT 512                /* bytes of a refusal */
#define LAUNCH_MAX_RANKS 4096

#define LAUNCH_ENV_RANK "TERN_RANK"
#define LAUNCH_ENV_NR_RANKS "TERN_NR_RANKS"
#define LAUNCH_ENV_FD "TERN_BOOT_FD"
#define LAUNCH_ENV_WAIT_MS "TERN_WAIT_MS"
#define LAUNCH_ENV_RESTARTS                                                                        \
	"TERN_RESTARTS" /* how often this rank was started anew; not set: none will be */

#define LAUNCH_KEY 32        /* bytes of a key, with its closing 0 */
#define LAUNCH_MAX_VALUE 256 /* bytes */
#define LAUNCH_MAX_VALUES 8192

/* The rendezvous: any rank may ask at any time, and is answered at once. */
struct launch_value {
	char key[LAUNCH_KEY];
	uint8_t value[LAUNCH_MAX_VALUE];
};

enum launch_kind {
	LAUNCH_GATHER = 1,   /* from a rank: `bytes` of payload follow */
	LAUNCH_GATHERED = 2, /* from the launcher: nr_ranks payloads of `bytes` each follow */
	LAUNCH_SET = 4,      /* from a rank: struct launch_value follows, as long as `bytes` says */
	LAUNCH_GET = 5,      /* from a rank: a key follows */
	LAUNCH_VALUE = 6,   /* from the launcher: to SET nothing follows, to GET `bytes` of value */
	LAUNCH_NOTHING = 7, /* from the launcher: there is no value of that key, or no room for it
			     */
	LAUNCH_REFUSED = 3  /* from the launcher: a text of `bytes` follows, without a closing 0 */
};

struct launch_header {
	uint32_t magic;
	uint16_t version;
	uint16_t kind;
	int32_t rank; /* whose socket this is */
	int32_t nr_ranks;
	uint64_t boot;     /* which boot of the rank's process, 1 for the first; 0: a new one */
	uint64_t sequence; /* which gathering of that boot, 1 for the first */
	uint64_t bytes;
};

#endif
