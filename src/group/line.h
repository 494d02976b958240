/* SPDX-License-Identifier: Apache-2.0 */
/* Lines: TCP connections between the nodes of an elastic group, one for each pair of ranks, on
 * which nothing is said while both live. When a process ends, however it does, its kernel closes
 * its ends at once. That is no proof that it has ended: what stands between two hosts can do the
 * same.
 *
 * A rank that is left out finds on its lines that it was: it may read that when it wakes up, or
 * when a cut has healed. */
#ifndef TERN_GROUP_LINE_H
#define TERN_GROUP_LINE_H

#include "group/group.h"

/* Collective: lines to all ranks on other nodes. Where none can be made there is none, on both
 * ends; then silence tells of deaths. */
int lines_open(tern_group *group);
void lines_close(tern_group *group);

enum line_state {
	LINE_OPEN,
	LINE_NONE,
	LINE_ENDED,
	LINE_LEFT_OUT /* the other end has left this rank out */
};

enum line_state line_look(const tern_group *group, uint32_t rank);

/* Tells a rank that it is left out; says nothing more on this line. */
void line_leave_out(const tern_group *group, uint32_t rank);

#endif
