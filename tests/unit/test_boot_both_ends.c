/* SPDX-License-Identifier: Apache-2.0 */
/* Both ends of the launcher's socket. */
#include "group/boot/launch_wire.h"
#include "cli/gather.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/unit/boot_ranks.h"

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
		cmocka_unit_test(launched_gather),
		cmocka_unit_test(launched_mismatch),
		cmocka_unit_test(launched_other_order),
		cmocka_unit_test(launched_rank_dies),
		cmocka_unit_test(launched_rank_gives_up),
		cmocka_unit_test(launched_garbage),
		cmocka_unit_test(launched_slow_writer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
