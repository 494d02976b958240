/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as processes of a test, that may be killed and stopped, with a gathering of the test's own
 * that outlives them. */
#ifndef TERN_TESTS_FAULTS_PROCESSES_H
#define TERN_TESTS_FAULTS_PROCESSES_H

#include <stdatomic.h>
#include <sys/types.h>

#include "tests/exchange/ranks.h"

#define MAX_PROCESSES 8
#define MAX_GATHERINGS 48
#define GATHERING_BYTES 2048

/* In shared memory: each gathering has a place of its own, so that nobody has to clean up after the
 * dead. */
struct board {
	int nr_ranks;
	int limit_ms; /* of one gathering */
	_Atomic int present[MAX_GATHERINGS][MAX_PROCESSES];
	unsigned char payload[MAX_GATHERINGS][MAX_PROCESSES][GATHERING_BYTES];
};

struct hosts;

struct scene {
	struct job job;
	const struct hosts *hosts; /* each rank on its own; NULL: all on one */
	int nr_ranks;
	int wait_ms;  /* of groups; 0: as usual */
	bool elastic; /* groups are */
	struct tern_rendezvous rendezvous;
	int silence_ms;           /* likewise */
	int victim, other_victim; /* the other: dies likewise; -1: nobody */
	int fate_at;              /* the rank at whom the victim's fate comes, where it does */
	int halves;               /* that the victim does in the disturbed round before its fate */
	_Atomic unsigned long long fate_ns;   /* when it met it; 0: not yet */
	_Atomic unsigned long long strike_ns; /* when somebody began to do it; 0: not yet */
	_Atomic bool at_place;                /* the victim is where it is to meet it */
	_Atomic int nr_past;                  /* ranks past the undisturbed rounds */
	_Atomic int nr_told;                  /* ranks that have said what they had to say */
	_Atomic int nr_ready;       /* ranks that are where somebody else waits for them */
	_Atomic int nr_rounds;      /* completed by rank 0 */
	struct board first, second; /* of all, and of those that go on */
	char failure[MAX_PROCESSES][600];
};

/* What ends a scene that hangs outside of tests/within, on any machine. */
#define SCENE_LIMIT_NS 180000000000ull

unsigned long long now_ns(void);

/* The scene in shared memory, for nr_ranks ranks; scene_close also checks that nothing is left of
 * it on this machine: no process, and in /dev/shm no file, where this process may have a /dev/shm
 * of its own. */
struct scene *scene_open(int nr_ranks, enum tern_mode mode);
void scene_close(struct scene *scene);

/* Starts the ranks, each of which calls body and ends: cmocka's process stays the parent. */
void scene_start(struct scene *scene, rank_main body, pid_t *pids);

/* Waits until all have ended, at most three minutes, and fails the test if one noted a failure or
 * ended by itself otherwise than it should: the victim by the signal `fate` (0: orderly), the
 * others orderly. */
void scene_finish(struct scene *scene, const pid_t *pids, int fate);
/* The same, but returns what is wrong, or NULL. */
const char *scene_verdict(struct scene *scene, const pid_t *pids, int fate);

/* Until none of the threads of a process that was sent SIGSTOP or SIGKILL can run any more: they go
 * on until the signal is seen, which a busy machine makes late. */
void await_standstill(pid_t pid);

/* Start, finish, close. */
void scene_play(struct scene *scene, rank_main body, int fate);

/* Whether an engine can be made over it; if not, tern_last_error says why. */
bool transport_is_there(const char *transport);

/* Joins the ranks of a board: rank->group. rank->ctx is the scene. */
int join(struct rank *rank, struct board *board, int number);
/* The same, but a failure is returned as it is, and not noted. */
int try_join(struct rank *rank, struct board *board, int number);

#endif
