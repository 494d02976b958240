/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a member's door:
 *   door.c         the thread, who calls, and what the caller's thread asks
 *   door_guests.c  who has entered: what they bring, and what they are answered
 */
#ifndef TERN_GROUP_DOOR_INSIDE_H
#define TERN_GROUP_DOOR_INSIDE_H

#include <poll.h>
#include <pthread.h>

#include "group/join_wire.h"
#include "group/members_inside.h"

#define NOBODY (-1)
#define CALLERS_MOST 64 /* that have said nothing yet: the oldest makes room for the next */

/* Of an exchange, for the one who comes. */
struct kept_window {
	uint64_t number;
	struct window *window; /* on the same node; else */
	tern_region *key;      /* by which it writes here */
	tern_remote *remote;
	struct kept_window *next;
};

/* Who has entered, and is no member yet. */
struct guest {
	int socket;                 /* -1: it has hung up, and is kept all the same */
	struct join_coming *coming; /* from another node; else NULL */
	uint64_t nonce;
	int lifeline, line;
	struct window *board;
	struct fd_passing_address address;
	struct kept_window *windows;
	bool admitted; /* to the engine */
	bool ready;
};

struct caller {
	int socket;                 /* -1 */
	struct join_coming *coming; /* from another node; else NULL */
};

struct door {
	tern_group *group;
	pthread_t thread;
	pthread_mutex_t lock; /* of all that follows, and of the group's offers and lifelines */
	int listener, far_listener, stop; /* far_listener: -1 where all are on one node */
	struct join_card card;
	struct introduction me;
	struct guest **guests; /* [R] by the place that they want; NULL: nobody */
	uint64_t *let_in;      /* [R] who came into that place last, by its nonce */
	int kept;              /* the place of the one that is kept for the view to come; NOBODY */
	struct view view;      /* that the group acts on */
	bool shut;
	struct caller callers[CALLERS_MOST]; /* the thread's own from here on */
	unsigned int nr_called;
	struct pollfd *polls; /* [3 + CALLERS_MOST + R] */
};

/* With the lock held. */
void door_see_out(struct door *d, int place);
bool guest_has_hung_up(const struct guest *guest);
bool guest_has_all(const tern_group *group, const struct guest *guest);
/* What it has brought goes into its places. */
void guest_take_over(struct door *d, uint32_t place, uint64_t gathering);

/* The first message of a caller: true if socket and coming are somebody's now, else the caller is
 * done with. */
bool door_hear_first(struct door *d, struct caller *caller, struct join_message *m, const int *fds);
/* A message of a guest; false: it is to go. */
bool door_serve(struct door *d, int place, struct join_message *m, int fd);

#endif
