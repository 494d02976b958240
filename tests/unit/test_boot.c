/* SPDX-License-Identifier: Apache-2.0 */
/* Bootstraps: ranks as threads, the rank's end of the launcher's socket against a scripted
 * launcher, and both ends of it. */
#include "group/boot/boot.h"
#include "group/boot/launch_wire.h"
#include "cli/gather.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>
#include "tests/late.h"

#define MAX_RANKS 8
#define MOST_BYTES 100000

/* ---- ranks that gather, each in a thread ----------------------------------------------------- */

struct rank {
	struct tern_boot boot;
	struct tern_boot second; /* where a test uses two boots at once */
	int nr_rounds;
	size_t bytes;             /* of each payload; varied where 0 */
	int bad_rounds;           /* wrong data */
	int rc;                   /* of the first failure */
	int64_t took_ms, late_ms; /* how long a rank took, and how long it could have run meanwhile
				     and did not */
	char text[1024];
	pthread_t thread;
};

static size_t bytes_of_round(const struct rank *rank, int round)
{
	static const size_t sizes[] = {8, 0, 1, 4096, 64};

	if (round % 64 == 63)
		return MOST_BYTES; /* more than a socket holds */
	return rank->bytes ? rank->bytes : sizes[round % 5];
}

/* Byte i of what a rank has in a round counts on from its first. All are parts of this. */
static unsigned char counted[256 + MOST_BYTES];

static void count_bytes(void)
{
	for (size_t i = 0; i < sizeof(counted); i++)
		counted[i] = (unsigned char)i;
}

static const unsigned char *right_bytes(int rank, int round)
{
	return counted + (unsigned char)(rank * 31 + round);
}

static bool is_right(const unsigned char *all, int nr_ranks, size_t bytes, int round)
{
	for (int r = 0; r < nr_ranks; r++)
		if (memcmp(all + (size_t)r * bytes, right_bytes(r, round), bytes) != 0)
			return false;
	return true;
}

static int one_round(struct rank *rank, int round)
{
	struct tern_boot *boot = rank->second.allgather && round & 1 ? &rank->second : &rank->boot;
	size_t bytes = bytes_of_round(rank, round);
	unsigned char *mine = malloc(bytes + 1),
		      *all = calloc(1, bytes * (size_t)boot->nr_ranks + 1);
	int rc;

	memcpy(mine, right_bytes(boot->rank, round), bytes);
	rc = boot->allgather(boot->ctx, mine, all, bytes);
	if (!rc && !is_right(all, boot->nr_ranks, bytes, round))
		rank->bad_rounds++;
	free(mine);
	free(all);
	return rc;
}

static void *rank_main(void *arg)
{
	struct rank *rank = arg;
	int64_t begin_ms = boot_now_ms(), late_ms = (int64_t)(late_ns() / 1000000);

	rank->rc = 0;
	for (int round = 0; round < rank->nr_rounds && !rank->rc; round++)
		rank->rc = one_round(rank, round);
	snprintf(rank->text, sizeof(rank->text), "%s", rank->rc ? tern_last_error() : "");
	rank->took_ms = boot_now_ms() - begin_ms;
	rank->late_ms = (int64_t)(late_ns() / 1000000) - late_ms;
	return NULL;
}

static void start_rank(struct rank *rank)
{
	assert_int_equal(pthread_create(&rank->thread, NULL, rank_main, rank), 0);
}

static void join_rank(struct rank *rank)
{
	assert_int_equal(pthread_join(rank->thread, NULL), 0);
}

static void assert_text(const struct rank *rank, int rc, const char *part)
{
	assert_int_equal(rank->rc, rc);
	if (!strstr(rank->text, part))
		fail_msg("\"%s\" is not in \"%s\"", part, rank->text);
}

static void assert_last_error(const char *part)
{
	if (!strstr(tern_last_error(), part))
		fail_msg("\"%s\" is not in \"%s\"", part, tern_last_error());
}

/* ---- threads --------------------------------------------------------------------------------- */

static void boot_threads(
	struct tern_threads **threads, struct rank *ranks, int n, int wait_ms, int nr_rounds)
{
	memset(ranks, 0, (size_t)n * sizeof(*ranks));
	assert_int_equal(tern_threads_create(n, wait_ms, threads), 0);
	for (int r = 0; r < n; r++) {
		assert_int_equal(tern_threads_boot(*threads, r, &ranks[r].boot), 0);
		assert_int_equal(ranks[r].boot.rank, r);
		assert_int_equal(ranks[r].boot.nr_ranks, n);
		ranks[r].nr_rounds = nr_rounds;
	}
}

static void close_ranks(struct rank *ranks, int n)
{
	for (int r = 0; r < n; r++) {
		ranks[r].boot.close(ranks[r].boot.ctx);
		if (ranks[r].second.close)
			ranks[r].second.close(ranks[r].second.ctx);
	}
}

static void threads_gather(void **state)
{
	struct tern_threads *threads;
	struct rank ranks[MAX_RANKS];

	(void)state;
	for (int n = 1; n <= MAX_RANKS; n++) {
		boot_threads(&threads, ranks, n, 30000, 300);
		for (int r = 0; r < n; r++)
			start_rank(&ranks[r]);
		for (int r = 0; r < n; r++)
			join_rank(&ranks[r]);
		for (int r = 0; r < n; r++) {
			assert_text(&ranks[r], 0, "");
			assert_int_equal(ranks[r].bad_rounds, 0);
		}
		close_ranks(ranks, n);
		tern_threads_destroy(threads);
	}
}

static void threads_two_boots_each(void **state)
{
	struct tern_threads *threads;
	struct rank ranks[3];

	(void)state;
	boot_threads(&threads, ranks, 3, 30000, 100);
	for (int r = 0; r < 3; r++) {
		assert_int_equal(tern_threads_boot(threads, r, &ranks[r].second), 0);
		start_rank(&ranks[r]);
	}
	for (int r = 0; r < 3; r++) {
		join_rank(&ranks[r]);
		assert_text(&ranks[r], 0, "");
	}
	tern_threads_destroy(threads); /* first, though boots are open: the last close frees */
	close_ranks(ranks, 3);
}

static void threads_mismatch(void **state)
{
	struct tern_threads *threads;
	struct rank ranks[4];

	(void)state;
	boot_threads(&threads, ranks, 4, 30000, 1);
	for (int r = 0; r < 4; r++)
		ranks[r].bytes = r == 2 ? 48 : 16;
	for (int r = 0; r < 4; r++)
		start_rank(&ranks[r]);
	for (int r = 0; r < 4; r++) {
		join_rank(&ranks[r]);
		assert_text(
			&ranks[r], TERN_ERR_BOOTSTRAP, "rank 0 passes 16 bytes, rank 2 passes 48");
	}
	rank_main(&ranks[0]); /* and so for ever */
	assert_text(&ranks[0], TERN_ERR_BOOTSTRAP, "rank 2 passes 48");
	close_ranks(ranks, 4);
	tern_threads_destroy(threads);
}

static void threads_missing_rank(void **state)
{
	struct tern_threads *threads;
	struct rank ranks[3];

	(void)state;
	boot_threads(&threads, ranks, 3, 100, 1);
	start_rank(&ranks[0]);
	start_rank(&ranks[2]);
	join_rank(&ranks[0]);
	join_rank(&ranks[2]);
	assert_text(&ranks[0], TERN_ERR_BOOTSTRAP, "first of them rank 1");
	assert_text(&ranks[2], TERN_ERR_BOOTSTRAP, "first of them rank 1");
	rank_main(&ranks[1]); /* too late, and told so without another wait */
	assert_text(&ranks[1], TERN_ERR_BOOTSTRAP, "waited 100 ms");
	assert_true(ranks[1].took_ms - ranks[1].late_ms < 90);
	close_ranks(ranks, 3);
	tern_threads_destroy(threads);
}

static void threads_bad_arguments(void **state)
{
	struct tern_threads *threads;
	struct tern_boot boot;

	(void)state;
	assert_int_equal(tern_threads_create(0, 10, &threads), TERN_ERR_INVALID);
	assert_int_equal(tern_threads_create(2, -1, &threads), TERN_ERR_INVALID);
	assert_int_equal(tern_threads_create(2, 10, NULL), TERN_ERR_INVALID);
	assert_int_equal(tern_threads_create(2, 10, &threads), 0);
	assert_int_equal(tern_threads_boot(threads, 2, &boot), TERN_ERR_INVALID);
	assert_int_equal(tern_threads_boot(threads, -1, &boot), TERN_ERR_INVALID);
	assert_int_equal(tern_threads_boot(NULL, 0, &boot), TERN_ERR_INVALID);
	tern_threads_destroy(threads);
	tern_threads_destroy(NULL);
}

/* ---- a boot that a caller has changed, or given twice ---------------------------------------- */

static void expect_refused(const struct tern_boot *boot, int code, const char *part)
{
	struct tern_group_config config;
	tern_group *group = NULL;

	tern_group_config_init(&config);
	config.boot = *boot;
	assert_int_equal(tern_group_create(&config, &group), code);
	assert_null(group);
	assert_last_error(part);
}

/* Nothing is gathered into room for fewer ranks than there are. */
static void changed_boots(void **state)
{
	struct tern_threads *threads;
	struct tern_boot boot;
	int pair[2];

	(void)state;
	assert_int_equal(tern_threads_create(2, 100, &threads), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	for (int by_socket = 0; by_socket < 2; by_socket++)
		for (int change = 0; change < 3; change++) {
			static const char *const said[] = {
				"rank 0 of 1", "rank 0 of 3", "rank 1 of 2"};
			static const int changed[][2] = {{0, 1}, {0, 3}, {1, 2}};

			assert_int_equal(by_socket ? boot_socket(0, 2, pair[1], 100, &boot)
						   : tern_threads_boot(threads, 0, &boot),
				0);
			boot.rank = changed[change][0];
			boot.nr_ranks = changed[change][1];
			expect_refused(&boot, TERN_ERR_INVALID, said[change]);
			assert_last_error("made for rank 0 of 2");
		}
	assert_int_equal(tern_boot_self(&boot), 0);
	boot.nr_ranks = 2;
	expect_refused(&boot, TERN_ERR_INVALID, "made for rank 0 of 1");
	tern_threads_destroy(threads);
	close(pair[0]);
	close(pair[1]);
}

/* The first group lives on with it, and is the one that closes it. */
static void boot_given_twice(void **state)
{
	struct tern_group_config config;
	struct tern_threads *threads;
	tern_group *group;
	int mine = 5, all = 0;

	(void)state;
	tern_group_config_init(&config);
	assert_int_equal(tern_threads_create(1, 100, &threads), 0);
	assert_int_equal(tern_threads_boot(threads, 0, &config.boot), 0);
	tern_threads_destroy(threads);
	assert_int_equal(tern_group_create(&config, &group), 0);
	expect_refused(&config.boot, TERN_ERR_INVALID, "rank 0 of 1 belongs to another group");
	assert_int_equal(tern_group_allgather(group, &mine, &all, sizeof(mine)), 0);
	assert_int_equal(all, 5);
	assert_int_equal(tern_group_destroy(group), 0);
	assert_int_equal(tern_boot_self(&config.boot), 0); /* as many as one likes */
	for (int i = 0; i < 2; i++) {
		assert_int_equal(tern_group_create(&config, &group), 0);
		assert_int_equal(tern_group_destroy(group), 0);
	}
}

/* Two threads that are both rank 1: both are told, and nobody waits for rank 0. */
static void threads_rank_twice(void **state)
{
	struct tern_threads *threads;
	struct rank ranks[2];

	(void)state;
	boot_threads(&threads, ranks, 2, 30000, 1);
	ranks[0].boot.close(ranks[0].boot.ctx);
	assert_int_equal(tern_threads_boot(threads, 1, &ranks[0].boot), 0);
	start_rank(&ranks[0]);
	start_rank(&ranks[1]);
	for (int r = 0; r < 2; r++) {
		join_rank(&ranks[r]);
		assert_text(&ranks[r], TERN_ERR_BOOTSTRAP, "rank 1 has come twice");
	}
	close_ranks(ranks, 2);
	tern_threads_destroy(threads);
}

/* A caller's own gathering, which says who is who in its own way. */
struct claim {
	struct tern_boot boot; /* who it is */
	int rank, nr_ranks;    /* and who it says it is */
	int rc;
	char text[256];
};

static int claim_allgather(void *ctx, const void *mine, void *all, size_t bytes)
{
	struct claim *claim = ctx;

	return claim->boot.allgather(claim->boot.ctx, mine, all, bytes);
}

static void *claim_main(void *arg)
{
	struct claim *claim = arg;
	struct tern_group_config config;
	tern_group *group = NULL;

	tern_group_config_init(&config);
	config.wait_ms = 1000;
	config.boot = (struct tern_boot){.rank = claim->rank,
		.nr_ranks = claim->nr_ranks,
		.allgather = claim_allgather,
		.ctx = claim};
	claim->rc = tern_group_create(&config, &group);
	snprintf(claim->text, sizeof(claim->text), "%s", claim->rc ? tern_last_error() : "");
	tern_group_destroy(group);
	return NULL;
}

static void false_claims(void **state)
{
	static const struct {
		int rank, nr_ranks;
		const char *text;
	} claims[] = {
		{0, 2, "in the place of rank 1 is one that says it is rank 0 of 2"},
		{1, 3, "in the place of rank 1 is one that says it is rank 1 of 3"},
	};
	struct tern_threads *threads;
	pthread_t thread;

	(void)state;
	for (size_t i = 0; i < sizeof(claims) / sizeof(claims[0]); i++) {
		struct claim one = {.rank = 0, .nr_ranks = 2},
			     other = {.rank = claims[i].rank, .nr_ranks = claims[i].nr_ranks};

		assert_int_equal(tern_threads_create(2, 30000, &threads), 0);
		assert_int_equal(tern_threads_boot(threads, 0, &one.boot), 0);
		assert_int_equal(tern_threads_boot(threads, 1, &other.boot), 0);
		assert_int_equal(pthread_create(&thread, NULL, claim_main, &one), 0);
		claim_main(&other);
		pthread_join(thread, NULL);
		assert_int_equal(one.rc, TERN_ERR_MISMATCH);
		assert_int_equal(other.rc, TERN_ERR_MISMATCH);
		if (!strstr(one.text, claims[i].text))
			fail_msg("\"%s\" is not in \"%s\"", claims[i].text, one.text);
		one.boot.close(one.boot.ctx);
		other.boot.close(other.boot.ctx);
		tern_threads_destroy(threads);
	}
}

/* ---- the environment ------------------------------------------------------------------------- */

static int clear_environment(void **state)
{
	static const char *const names[] = {"TERN_RANK", "TERN_NR_RANKS", "TERN_BOOT_FD",
		"TERN_WAIT_MS", "PMIX_RANK", "PMIX_NAMESPACE"};

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unsetenv(names[i]);
	return 0;
}

static void set_environment(const char *rank, const char *nr_ranks, const char *fd)
{
	clear_environment(NULL);
	if (rank)
		setenv("TERN_RANK", rank, 1);
	if (nr_ranks)
		setenv("TERN_NR_RANKS", nr_ranks, 1);
	if (fd)
		setenv("TERN_BOOT_FD", fd, 1);
}

static void env_alone(void **state)
{
	struct tern_boot boot;
	int mine = 7, all = 0;

	(void)state;
	assert_int_equal(tern_boot_env(&boot), 0);
	assert_int_equal(boot.rank, 0);
	assert_int_equal(boot.nr_ranks, 1);
	assert_int_equal(boot.allgather(boot.ctx, &mine, &all, sizeof(mine)), 0);
	assert_int_equal(all, 7);
	assert_int_equal(tern_boot_env(NULL), TERN_ERR_INVALID);
	assert_int_equal(tern_boot_self(NULL), TERN_ERR_INVALID);
}

static void env_bad_values(void **state)
{
	static const struct {
		const char *rank, *nr_ranks, *fd, *text;
	} cases[] = {
		{"x", "2", "0", "TERN_RANK is \"x\""},
		{"1x", "2", "0", "TERN_RANK is \"1x\""},
		{"", "2", "0", "TERN_RANK is \"\""},
		{"2", "2", "0", "TERN_RANK is \"2\"; it has to be a whole number from 0 to 1"},
		{"-1", "2", "0", "TERN_RANK is \"-1\""},
		{"0", "0", "0", "TERN_NR_RANKS is \"0\""},
		{"0", "99999999999999999999", "0", "TERN_NR_RANKS is \"99999999999999999999\""},
		{"0", NULL, "0", "TERN_NR_RANKS is not set"},
		{NULL, "2", "0", "TERN_RANK is not set"},
		{"0", "2", NULL, "TERN_BOOT_FD is not set"},
		{"0", "2", "-5", "TERN_BOOT_FD is \"-5\""},
		{"0", "2", "987654", "TERN_BOOT_FD is 987654, which is no open socket"},
	};
	struct tern_boot boot = {.rank = 77};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		set_environment(cases[i].rank, cases[i].nr_ranks, cases[i].fd);
		assert_int_equal(tern_boot_env(&boot), TERN_ERR_BOOTSTRAP);
		assert_last_error(cases[i].text);
		assert_int_equal(boot.rank, 77);
	}
	clear_environment(NULL);
	setenv("TERN_WAIT_MS", "soon", 1);
	assert_int_equal(tern_boot_env(&boot), TERN_ERR_BOOTSTRAP);
	assert_last_error("TERN_WAIT_MS is \"soon\"");
}

static void env_wrong_descriptor(void **state)
{
	struct tern_boot boot;
	int inet = socket(AF_INET, SOCK_STREAM, 0), file = open("/dev/null", O_RDONLY);

	(void)state;
	assert_int_equal(boot_socket(0, 2, file, 10, &boot), TERN_ERR_BOOTSTRAP);
	assert_last_error("no open socket");
	if (inet >= 0) {
		assert_int_equal(boot_socket(0, 2, inet, 10, &boot), TERN_ERR_BOOTSTRAP);
		assert_last_error("not the launcher's");
		close(inet);
	}
	close(file);
}

/* ---- a rank against a scripted launcher ------------------------------------------------------ */

struct script { /* how the launcher answers rank 0 of 2, whose payload has 8 bytes */
	const char *what;
	struct launch_header change; /* fields that are not 0 replace those of a right answer */
	size_t cut;                  /* bytes sent before the end of file; 0: all */
	const char *text;            /* expected in the error; NULL: success */
};

static struct launch_header right_answer(const struct launch_header *asked)
{
	struct launch_header h = *asked;

	h.kind = LAUNCH_GATHERED;
	h.boot = h.boot ? h.boot : 1;
	return h;
}

static void apply(struct launch_header *h, const struct launch_header *change)
{
	h->magic = change->magic ? change->magic : h->magic;
	h->version = change->version ? change->version : h->version;
	h->kind = change->kind ? change->kind : h->kind;
	h->rank = change->rank ? change->rank : h->rank;
	h->nr_ranks = change->nr_ranks ? change->nr_ranks : h->nr_ranks;
	h->boot = change->boot ? change->boot : h->boot;
	h->sequence = change->sequence ? change->sequence : h->sequence;
	h->bytes = change->bytes ? change->bytes : h->bytes;
}

static void read_whole(int fd, void *to, size_t bytes)
{
	assert_int_equal(recv(fd, to, bytes, MSG_WAITALL), bytes);
}

static void write_bytewise(int fd, const void *from, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (send(fd, (const char *)from + i, 1, MSG_NOSIGNAL) != 1)
			return; /* the rank has had enough */
}

/* Answers one request by the script; true when the stream may go on. */
static void play(int fd, const struct script *script)
{
	struct launch_header asked, out;
	unsigned char answer[sizeof(out) + 16], *body = answer + sizeof(out);

	read_whole(fd, &asked, sizeof(asked));
	assert_int_equal(asked.magic, LAUNCH_MAGIC);
	assert_int_equal(asked.bytes, 8);
	read_whole(fd, body, 8);
	memcpy(body + 8, body, 8);
	for (int i = 0; i < 8; i++)
		body[8 + i] += 31; /* as rank 1 fills it */
	out = right_answer(&asked);
	apply(&out, &script->change);
	memcpy(answer, &out, sizeof(out));
	write_bytewise(fd, answer, script->cut ? script->cut : sizeof(answer));
	if (script->cut)
		shutdown(fd, SHUT_RDWR);
}

static const struct script scripts[] = {
	{"right", {0}, 0, NULL},
	{"magic", {.magic = 0x31415926}, 0, "begins with 31415926"},
	{"version", {.version = 9}, 0, "version 9"},
	{"kind", {.kind = 77}, 0, "kind 77"},
	{"asked back", {.kind = LAUNCH_GATHER}, 0, "kind 1"},
	{"rank", {.rank = 1}, 0, "answers rank 1 of 2"},
	{"ranks", {.nr_ranks = 3}, 0, "answers rank 0 of 3"},
	{"sequence", {.sequence = 5}, 0, "gathering 5"},
	{"size", {.bytes = 16}, 0, "16 bytes a rank; asked with 8"},
	{"long refusal", {.kind = LAUNCH_REFUSED, .bytes = 1 << 20}, 0, "1048576 bytes"},
	{"end before", {0}, 1, "closed its socket"},
	{"end in header", {0}, sizeof(struct launch_header) - 1, "closed its socket"},
	{"end in payload", {0}, sizeof(struct launch_header) + 11, "closed its socket"},
};

static void run_script(const struct script *script)
{
	struct rank rank = {.nr_rounds = 1, .bytes = 8};
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	assert_int_equal(boot_socket(0, 2, pair[1], 5000, &rank.boot), 0);
	start_rank(&rank);
	play(pair[0], script);
	join_rank(&rank);
	if (script->text) {
		assert_text(&rank, TERN_ERR_BOOTSTRAP, script->text);
		rank_main(&rank); /* out of step: an error again, and at once */
		assert_int_equal(rank.rc, TERN_ERR_BOOTSTRAP);
	} else {
		assert_text(&rank, 0, "");
		assert_int_equal(rank.bad_rounds, 0);
	}
	rank.boot.close(rank.boot.ctx);
	assert_int_not_equal(fcntl(pair[1], F_GETFD), -1); /* the inherited one stays */
	close(pair[0]);
	close(pair[1]);
}

static void env_scripts(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++)
		run_script(&scripts[i]);
}

static void env_time_out(void **state)
{
	struct rank rank = {.nr_rounds = 1, .bytes = 8};
	int pair[2];
	char text[64];

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	snprintf(text, sizeof(text), "%d", pair[1]);
	set_environment("0", "2", text);
	setenv("TERN_WAIT_MS", "50", 1);
	assert_int_equal(tern_boot_env(&rank.boot), 0);
	rank_main(&rank);
	assert_text(&rank, TERN_ERR_BOOTSTRAP, "not answered within 50 ms");
	assert_true(rank.took_ms >= 50 && rank.took_ms - rank.late_ms < 5000);
	rank_main(&rank);
	assert_text(&rank, TERN_ERR_BOOTSTRAP, "gave up an earlier gathering");
	rank.boot.close(rank.boot.ctx);
	close(pair[0]);
	close(pair[1]);
}

static void env_close_on_exec(void **state)
{
	struct tern_boot boot;
	int pair[2], duplicate;

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	duplicate = dup(pair[1]); /* the number that the boot will get */
	close(duplicate);
	assert_int_equal(boot_socket(0, 1, pair[1], 10, &boot), 0);
	assert_int_equal(fcntl(duplicate, F_GETFD), FD_CLOEXEC);
	assert_int_equal(fcntl(pair[1], F_GETFD), 0);
	assert_int_equal(fcntl(pair[1], F_GETFL) & O_NONBLOCK, 0);
	boot.close(boot.ctx);
	assert_int_equal(fcntl(duplicate, F_GETFD), -1);
	close(pair[0]);
	close(pair[1]);
}

static void env_too_many_bytes(void **state)
{
	struct tern_boot boot;
	int pair[2];

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	assert_int_equal(boot_socket(0, 2, pair[1], 10, &boot), 0);
	assert_int_equal(boot.allgather(boot.ctx, NULL, NULL, (size_t)1 << 30), TERN_ERR_BOOTSTRAP);
	assert_last_error("1073741824 bytes from each of 2 ranks");
	boot.close(boot.ctx);
	close(pair[0]);
	close(pair[1]);
}

/* ---- both ends ------------------------------------------------------------------------------- */

struct server {
	struct gather *gather;
	int nr_ranks;
	int fds[MAX_RANKS];   /* the ranks' ends */
	_Atomic int end_rank; /* to be reported as ended; -1: none */
	_Atomic bool stop;
	pthread_t thread;
};

static void serve_once(struct server *s)
{
	struct pollfd polls[MAX_RANKS];
	int rank = atomic_exchange(&s->end_rank, -1);

	if (rank >= 0)
		gather_rank_ended(s->gather, rank, "died (signal 9, Killed)");
	gather_tick(s->gather);
	for (int r = 0; r < s->nr_ranks; r++)
		polls[r] = (struct pollfd){
			.fd = gather_fd(s->gather, r), .events = gather_events(s->gather, r)};
	poll(polls, (nfds_t)s->nr_ranks, 10); /* so short because the flags above do not wake it */
	for (int r = 0; r < s->nr_ranks; r++)
		if (polls[r].revents)
			gather_ready(s->gather, r, polls[r].revents);
}

static void *server_main(void *arg)
{
	struct server *s = arg;

	while (!atomic_load(&s->stop))
		serve_once(s);
	return NULL;
}

static void start_server(struct server *s, struct rank *ranks, int n, int nr_rounds, int wait_ms)
{
	int pair[2], ours[MAX_RANKS];

	memset(ranks, 0, (size_t)n * sizeof(*ranks));
	*s = (struct server){.nr_ranks = n, .end_rank = -1};
	for (int r = 0; r < n; r++) {
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
		ours[r] = pair[0];
		s->fds[r] = pair[1];
		assert_int_equal(boot_socket(r, n, pair[1], wait_ms, &ranks[r].boot), 0);
		ranks[r].nr_rounds = nr_rounds;
	}
	s->gather = gather_new(n, ours);
	assert_non_null(s->gather);
	assert_int_equal(pthread_create(&s->thread, NULL, server_main, s), 0);
}

static void stop_server(struct server *s, struct rank *ranks)
{
	close_ranks(ranks, s->nr_ranks);
	atomic_store(&s->stop, true);
	pthread_join(s->thread, NULL);
	gather_free(s->gather);
	for (int r = 0; r < s->nr_ranks; r++)
		if (s->fds[r] >= 0)
			close(s->fds[r]);
}

static void launched_gather(void **state)
{
	struct server server;
	struct rank ranks[MAX_RANKS];

	(void)state;
	for (int n = 1; n <= MAX_RANKS; n++) {
		start_server(&server, ranks, n, 200, 30000);
		for (int r = 0; r < n; r++) {
			if (n % 2)
				assert_int_equal(
					boot_socket(r, n, server.fds[r], 30000, &ranks[r].second),
					0);
			start_rank(&ranks[r]);
		}
		for (int r = 0; r < n; r++) {
			join_rank(&ranks[r]);
			assert_text(&ranks[r], 0, "");
			assert_int_equal(ranks[r].bad_rounds, 0);
		}
		stop_server(&server, ranks);
	}
}

static void run_three(struct rank *ranks)
{
	for (int r = 0; r < 3; r++)
		start_rank(&ranks[r]);
	for (int r = 0; r < 3; r++)
		join_rank(&ranks[r]);
}

static void launched_mismatch(void **state)
{
	struct server server;
	struct rank ranks[3];

	(void)state;
	start_server(&server, ranks, 3, 1, 30000);
	for (int r = 0; r < 3; r++)
		ranks[r].bytes = r == 1 ? 40 : 24;
	run_three(ranks);
	for (int r = 0; r < 3; r++)
		assert_text(&ranks[r], TERN_ERR_BOOTSTRAP,
			"gathering 1: rank 0 passes 24 bytes, rank 1 passes 40");
	ranks[1].bytes = 24; /* a refusal leaves the streams in step */
	run_three(ranks);
	for (int r = 0; r < 3; r++)
		assert_text(&ranks[r], 0, "");
	stop_server(&server, ranks);
}

static void launched_other_order(void **state)
{
	struct server server;
	struct rank ranks[3];
	struct tern_boot first;

	(void)state;
	start_server(&server, ranks, 3, 1, 30000);
	for (int r = 0; r < 3; r++)
		assert_int_equal(boot_socket(r, 3, server.fds[r], 30000, &ranks[r].second), 0);
	run_three(ranks); /* boot 1, gathering 1 */
	first = ranks[2].boot;
	for (int r = 0; r < 2; r++)
		ranks[r].nr_rounds = 2;  /* boot 1, gathering 2 */
	ranks[2].boot = ranks[2].second; /* boot 2, gathering 1 */
	run_three(ranks);
	assert_text(&ranks[0], TERN_ERR_BOOTSTRAP,
		"rank 0 is at gathering 2 of its group 1, rank 2 at gathering 1 of its group 2");
	ranks[2].boot = first;
	stop_server(&server, ranks);
}

static void launched_rank_dies(void **state)
{
	struct server server;
	struct rank ranks[3];

	(void)state;
	start_server(&server, ranks, 3, 1, 30000);
	start_rank(&ranks[0]);
	start_rank(&ranks[2]);
	atomic_store(&server.end_rank, 1);
	join_rank(&ranks[0]);
	join_rank(&ranks[2]);
	assert_text(&ranks[0], TERN_ERR_BOOTSTRAP, "rank 1 died (signal 9, Killed)");
	assert_text(&ranks[2], TERN_ERR_BOOTSTRAP, "rank 1 died (signal 9, Killed)");
	stop_server(&server, ranks);
}

static void launched_rank_gives_up(void **state)
{
	struct server server;
	struct rank ranks[3];

	(void)state;
	start_server(&server, ranks, 3, 1, 30000);
	ranks[1].boot.close(ranks[1].boot.ctx);
	assert_int_equal(boot_socket(1, 3, server.fds[1], 50, &ranks[1].boot), 0);
	start_rank(&ranks[0]);
	rank_main(&ranks[1]);
	assert_text(&ranks[1], TERN_ERR_BOOTSTRAP, "not answered within 50 ms");
	join_rank(&ranks[0]);
	assert_text(&ranks[0], TERN_ERR_BOOTSTRAP, "rank 1 gave up waiting");
	rank_main(&ranks[2]); /* late, and not left to wait */
	assert_text(&ranks[2], TERN_ERR_BOOTSTRAP, "rank 1 gave up waiting");
	assert_true(ranks[0].took_ms - ranks[0].late_ms < 20000 &&
		    ranks[2].took_ms - ranks[2].late_ms < 20000);
	stop_server(&server, ranks);
}

static void launched_garbage(void **state)
{
	static const struct launch_header bad[] = {
		{.magic = 0x12345678,
			.version = LAUNCH_VERSION,
			.kind = LAUNCH_GATHER,
			.rank = 1,
			.nr_ranks = 3,
			.bytes = 8},
		{.magic = LAUNCH_MAGIC,
			.version = LAUNCH_VERSION + 1,
			.kind = LAUNCH_GATHER,
			.rank = 1,
			.nr_ranks = 3,
			.bytes = 8},
		{.magic = LAUNCH_MAGIC,
			.version = LAUNCH_VERSION,
			.kind = LAUNCH_GATHERED,
			.rank = 1,
			.nr_ranks = 3,
			.bytes = 8},
		{.magic = LAUNCH_MAGIC,
			.version = LAUNCH_VERSION,
			.kind = LAUNCH_GATHER,
			.rank = 2,
			.nr_ranks = 3,
			.bytes = 8},
		{.magic = LAUNCH_MAGIC,
			.version = LAUNCH_VERSION,
			.kind = LAUNCH_GATHER,
			.rank = 1,
			.nr_ranks = 4,
			.bytes = 8},
		{.magic = LAUNCH_MAGIC,
			.version = LAUNCH_VERSION,
			.kind = LAUNCH_GATHER,
			.rank = 1,
			.nr_ranks = 3,
			.bytes = ~0ull},
	};
	struct server server;
	struct rank ranks[3];

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct launch_header answer;

		start_server(&server, ranks, 3, 1, 30000);
		start_rank(&ranks[0]);
		write_bytewise(server.fds[1], &bad[i], sizeof(bad[i]));
		join_rank(&ranks[0]);
		assert_text(
			&ranks[0], TERN_ERR_BOOTSTRAP, "rank 1 sent a request that makes no sense");
		read_whole(server.fds[1], &answer, sizeof(answer));
		assert_int_equal(answer.kind, LAUNCH_REFUSED);
		stop_server(&server, ranks);
	}
}

/* A rank whose request comes byte by byte, and who reads its answer byte by byte. */
static void launched_slow_writer(void **state)
{
	struct server server;
	struct rank ranks[2];
	struct launch_header h = {.magic = LAUNCH_MAGIC,
		.version = LAUNCH_VERSION,
		.kind = LAUNCH_GATHER,
		.rank = 1,
		.nr_ranks = 2,
		.sequence = 1,
		.bytes = 16};
	unsigned char payload[16], answer[sizeof(h) + 32];

	(void)state;
	start_server(&server, ranks, 2, 1, 30000);
	ranks[0].bytes = 16;
	start_rank(&ranks[0]);
	for (int i = 0; i < 16; i++)
		payload[i] = (unsigned char)(31 + i);
	write_bytewise(server.fds[1], &h, sizeof(h));
	write_bytewise(server.fds[1], payload, sizeof(payload));
	for (size_t i = 0; i < sizeof(answer); i++)
		read_whole(server.fds[1], &answer[i], 1);
	join_rank(&ranks[0]);
	assert_text(&ranks[0], 0, "");
	assert_int_equal(ranks[0].bad_rounds, 0);
	assert_memory_equal(answer + sizeof(h) + 16, payload, 16);
	stop_server(&server, ranks);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(threads_gather),
		cmocka_unit_test(threads_two_boots_each),
		cmocka_unit_test(threads_mismatch),
		cmocka_unit_test(threads_missing_rank),
		cmocka_unit_test(threads_bad_arguments),
		cmocka_unit_test(changed_boots),
		cmocka_unit_test(boot_given_twice),
		cmocka_unit_test(threads_rank_twice),
		cmocka_unit_test(false_claims),
		cmocka_unit_test_setup(env_alone, clear_environment),
		cmocka_unit_test_teardown(env_bad_values, clear_environment),
		cmocka_unit_test(env_wrong_descriptor),
		cmocka_unit_test(env_scripts),
		cmocka_unit_test_teardown(env_time_out, clear_environment),
		cmocka_unit_test(env_close_on_exec),
		cmocka_unit_test(env_too_many_bytes),
		cmocka_unit_test(launched_gather),
		cmocka_unit_test(launched_mismatch),
		cmocka_unit_test(launched_other_order),
		cmocka_unit_test(launched_rank_dies),
		cmocka_unit_test(launched_rank_gives_up),
		cmocka_unit_test(launched_garbage),
		cmocka_unit_test(launched_slow_writer),
	};

	count_bytes();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
