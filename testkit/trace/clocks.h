/* SPDX-License-Identifier: Apache-2.0 */
/* How far two hosts' clocks are apart, by messages between them, whatever these take. */
#ifndef TERN_TESTKIT_TRACE_CLOCKS_H
#define TERN_TESTKIT_TRACE_CLOCKS_H

#include <stdint.h>

/* The least difference, over many messages, of the receiver's clock when it had come and the
 * sender's before it left. */
struct clock_bounds {
	int64_t there, back; /* from the first to this rank, and from this one to the first */
};

/* This clock minus the first rank's: no message travels back in time, so it is between -back and
 * there, and taken to be in the middle. *within_ns: at most so wrong. */
int64_t clock_offset(struct clock_bounds bounds, uint64_t *within_ns);

#endif
