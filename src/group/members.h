/* SPDX-License-Identifier: Apache-2.0 */
/* The members of an elastic group: who they are, noticing that one is gone, and agreeing with the
 * others on the next view. */
#ifndef TERN_GROUP_MEMBERS_H
#define TERN_GROUP_MEMBERS_H

#include <stdatomic.h>

#include "group/group.h"

struct members;

/* Collective, when all paths are known. */
int members_open(tern_group *group);
void members_close(tern_group *group);

bool members_have(const tern_group *group, uint32_t rank);

/* Any thread: a member is gone. */
void members_want_change(tern_group *group);
/* Any thread, in waits: one load. */
bool members_are_to_change(const tern_group *group);
/* 0, or why no half may begin: this rank has told others that it stores nothing. */
int members_check(const tern_group *group);

/* TERN_ERR_MEMBERS, with who is known to be gone. */
int members_fail(tern_group *group);

/* tern_group_allgather of an elastic group. */
int members_allgather(tern_group *group, const void *mine, void *all, size_t bytes);

#endif
