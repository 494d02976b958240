/* SPDX-License-Identifier: Apache-2.0 */
/* The rank's end of the launcher's socket, against a scripted launcher; and the environment that
 * leads there. */
#include "group/boot/launch_wire.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/unit/boot_ranks.h"

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(env_alone, clear_environment),
		cmocka_unit_test_teardown(env_bad_values, clear_environment),
		cmocka_unit_test(env_wrong_descriptor),
		cmocka_unit_test(env_scripts),
		cmocka_unit_test_teardown(env_time_out, clear_environment),
		cmocka_unit_test(env_close_on_exec),
		cmocka_unit_test(env_too_many_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
