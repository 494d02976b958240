/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of what goes wrong in the engine: worlds of stepped engines, where writes to one place of
 * rank 1 meet a fate of the test's choice. With cmocka: what does not hold fails the test. */
#ifndef TERN_TESTS_ENGINE_FATES_H
#define TERN_TESTS_ENGINE_FATES_H

#include "tests/engine/world.h"

#define WAIT 1000 /* ms of the world's time */
#define FATE_PLACE 300000u

/* Of writes to the 1000 bytes there; all others land. */
extern enum loop_fate fate_there;
enum loop_fate fate(uint32_t from, const struct transport_write *write);

/* One rank is apart, reached over a network of its own; -1: none. All writes land until the test
 * says otherwise. */
struct world *open_mixed(int nr, uint32_t caps, int apart, uint32_t other_caps, int heartbeat_ms);
struct world *open_world(int nr, uint32_t caps, int heartbeat_ms);
void close_world(struct world *world);

void settle_ns(struct world *world, uint64_t ns);
tern_op begin_write(struct world *world, int from, int to, uint64_t remote, uint64_t bytes);
/* error 0: it ends well; else with that, and a text that has this one in it. */
void expect_end(struct world *world, int rank, tern_op op, int error, const char *text);

#endif
