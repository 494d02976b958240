/* SPDX-License-Identifier: Apache-2.0 */
/* tern-against-mpi: Tern, the same exchange over MPI_Alltoallv, and plain memcpy, in one run:
 * interleaved on the same ranks, with the same routing and the same inputs. Takes the flags of
 * `tern bench`; start it with mpirun. */
#include "bench/mpi/bench.h"
#include "testkit/measure.h"
#include "testkit/verify.h"
#include "group/group.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

_Noreturn void die(const char *format, ...)
{
	va_list args;

	fprintf(stderr, "tern-against-mpi: ");
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, "\n");
	MPI_Abort(MPI_COMM_WORLD, 1);
	exit(1);
}

void check(int rc, const char *what)
{
	if (rc)
		die("%s: %s", what, tern_last_error());
}

static int mpi_allgather(void *ctx, const void *mine, void *all, size_t bytes)
{
	(void)ctx;
	return MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE,
		       MPI_COMM_WORLD) == MPI_SUCCESS
		       ? 0
		       : -1;
}

/* ---- the methods ----------------------------------------------------------------------------- */

void tern_method_dispatch(struct bench *b)
{
	struct tern_dispatch args = {
		.size = sizeof(args),
		.nr_tokens = b->input.nr_tokens,
		.x = b->input.x,
		.scales = b->input.scales,
		.topk_ids = b->input.ids,
		.topk_weights = b->input.weights,
	};

	b->received = (struct tern_received){.size = sizeof(b->received)};
	check(tern_dispatch(b->moe, &args, &b->received), "dispatch");
}

void tern_method_combine(struct bench *b)
{
	struct tern_combine args = {.size = sizeof(args), .y = b->buffers.y};

	check(tern_combine(b->moe, &args, b->tern_out, 0), "combine");
}

void per_rank_dispatch(struct bench *b)
{
	exchange_dispatch(&b->per_rank);
}

void per_rank_combine(struct bench *b)
{
	exchange_combine(&b->per_rank);
}

void per_route_dispatch(struct bench *b)
{
	exchange_dispatch(&b->per_route);
}

void per_route_combine(struct bench *b)
{
	exchange_combine(&b->per_route);
}

static void wire_dispatch(struct bench *b)
{
	floor_dispatch(&b->wire);
}

static void wire_combine(struct bench *b)
{
	floor_combine(&b->wire);
}

static void whole_dispatch(struct bench *b)
{
	floor_dispatch(&b->whole);
}

static void whole_combine(struct bench *b)
{
	floor_combine(&b->whole);
}

static const struct method {
	void (*dispatch)(struct bench *b);
	void (*combine)(struct bench *b);
} methods[NR_METHODS] = {
	[METHOD_TERN] = {tern_method_dispatch, tern_method_combine},
	[METHOD_MPI_RANK] = {per_rank_dispatch, per_rank_combine},
	[METHOD_MPI_ROUTE] = {per_route_dispatch, per_route_combine},
	[METHOD_WIRE] = {wire_dispatch, wire_combine},
	[METHOD_JOB] = {whole_dispatch, whole_combine},
	[METHOD_RAW] = {raw_dispatch, raw_combine},
};

/* ---- set up ---------------------------------------------------------------------------------- */

/* Pages that are never written cost nothing. */
static void *reserve(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED)
		die("no address space for %zu bytes", bytes);
	return memory;
}

static size_t larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

static void make_buffers(struct bench *b)
{
	const struct tern_moe_config *c = &b->job->config;
	size_t routes = (size_t)b->nr_ranks * c->max_tokens * c->topk +
			(size_t)c->nr_experts * c->alignment + 1;
	size_t record = larger(exchange_record_bytes(b->job, RECORD_PER_RANK), job_y_bytes(b->job));
	size_t bytes[7] = {routes * record, routes * record, routes * record,
		routes * (job_received_scales_bytes(b->job) + 1), routes * job_y_bytes(b->job),
		((size_t)c->max_tokens + 1) * job_y_bytes(b->job),
		routes * sizeof(struct tern_row)};

	memcpy(b->buffer_bytes, bytes, sizeof(bytes));
	b->buffers = (struct buffers){reserve(bytes[0]), reserve(bytes[1]), reserve(bytes[2]),
		reserve(bytes[3]), reserve(bytes[4]), reserve(bytes[5]), reserve(bytes[6])};
}

static void free_buffers(struct bench *b)
{
	void *all[7] = {b->buffers.send, b->buffers.recv, b->buffers.x, b->buffers.scales,
		b->buffers.y, b->buffers.out, b->buffers.rows};

	for (int i = 0; i < 7; i++)
		munmap(all[i], b->buffer_bytes[i]);
}

static void *aligned(size_t bytes)
{
	void *memory = NULL;

	if (posix_memalign(&memory, 64, bytes + 64))
		die("out of memory: %zu bytes", bytes);
	return memory;
}

static void make_input(struct bench *b)
{
	uint32_t n = job_nr_tokens(b->job, 0, (uint32_t)b->rank), topk = b->job->config.topk;
	size_t x = job_x_bytes(b->job), scales = job_x_scales_bytes(b->job);

	b->input = (struct input){
		.nr_tokens = n,
		.ids = aligned((size_t)n * topk * sizeof(int32_t)),
		.weights = aligned((size_t)n * topk * sizeof(float)),
		.x = aligned(n * x),
		.scales = scales ? aligned(n * scales) : NULL,
	};
	job_routes(b->job, 0, (uint32_t)b->rank, b->input.ids, b->input.weights);
	job_x(b->job, 0, (uint32_t)b->rank, b->input.x, x, b->input.scales, scales);
	b->tern_out = aligned(n * job_y_bytes(b->job));
}

static void free_input(struct bench *b)
{
	free(b->input.ids);
	free(b->input.weights);
	free(b->input.x);
	free(b->input.scales);
	free(b->tern_out);
}

/* How many ranks each token goes to, and how many in all. */
static uint64_t count_copies(struct bench *b)
{
	const struct exchange *e = &b->per_rank;
	uint64_t nr = 0;

	b->nr_copies = aligned(b->input.nr_tokens * sizeof(uint32_t));
	for (uint32_t t = 0; t < b->input.nr_tokens; t++) {
		const int32_t *ids = b->input.ids + (size_t)t * e->topk;
		uint32_t ranks = 0;

		for (uint32_t k = 0; k < e->topk; k++) {
			bool seen = ids[k] < 0;

			for (uint32_t i = 0; i < k && !seen; i++)
				seen = ids[i] >= 0 &&
				       b->experts.rank[ids[i]] == b->experts.rank[ids[k]];
			ranks += !seen;
		}
		b->nr_copies[t] = ranks;
		nr += ranks;
	}
	return nr;
}

/* After a dispatch per rank, which knows what arrives. */
static void make_floors(struct bench *b)
{
	const struct exchange *e = &b->per_rank;
	uint64_t nr_sent = count_copies(b);
	int last = b->nr_ranks - 1;

	b->wire = (struct floor){
		.job = b->job,
		.buffers = &b->buffers,
		.nr_tokens = b->input.nr_tokens,
		.nr_sent = nr_sent,
		.nr_copies = b->nr_copies,
		.row_bytes = job_received_bytes(b->job) + job_received_scales_bytes(b->job),
		.nr_home = (uint64_t)(e->away_at[last] + e->nr_away[last]),
	};
	for (uint32_t l = 0; l < b->experts.nr_local; l++)
		b->wire.nr_received += e->counts[l];
	b->whole = b->wire;
	b->whole.whole = true;
}

static void open_exchanges(struct bench *b)
{
	b->reference = reference_create(b->job);
	if (!b->reference)
		die("out of memory for the reference");
	b->experts = (struct experts){
		b->reference->rank, b->reference->local, b->reference->nr_local[b->rank]};
	if (exchange_open(&b->per_rank, b->job, RECORD_PER_RANK, &b->experts, &b->input,
		    &b->buffers, MPI_COMM_WORLD) ||
		exchange_open(&b->per_route, b->job, RECORD_PER_ROUTE, &b->experts, &b->input,
			&b->buffers, MPI_COMM_WORLD))
		die("out of memory for the MPI exchange");
	check(tern_moe_create(b->group, &b->job->config, &b->moe), "tern_moe_create");
	if (fill_y(b->reference, (uint32_t)b->rank, b->buffers.y, 0))
		die("out of memory for the experts' rows");
}

static void close_exchanges(struct bench *b)
{
	check(tern_moe_destroy(b->moe), "tern_moe_destroy");
	exchange_close(&b->per_rank);
	exchange_close(&b->per_route);
	reference_destroy(b->reference);
	free(b->nr_copies);
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* An engine's proxy still looks for more after a round; it gets a moment to fall asleep, else the
 * next method would share the cores with it. */
#define REST_US 1000

static double begin(const struct bench *b)
{
	if (b->group->engine)
		usleep(REST_US);
	MPI_Barrier(MPI_COMM_WORLD);
	return now_us();
}

/* From the first rank's begin to the last one's end: with fewer cores than ranks, a rank's own time
 * leaves out its wait for a core, and a floor that waits for nobody would look too low. The ranks
 * are on one machine, so their clocks are one. */
static double elapsed(double start)
{
	double mine[2] = {-start, now_us()}, all[2];

	MPI_Allreduce(mine, all, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	return all[1] + all[0];
}

/* A round for the halves, each after a barrier, and a round for the pair. */
static void measure_rounds(struct bench *b, const struct method *m, double us[NR_MEASURES])
{
	double start = begin(b);

	m->dispatch(b);
	us[MEASURE_DISPATCH] = elapsed(start);
	start = begin(b);
	m->combine(b);
	us[MEASURE_COMBINE] = elapsed(start);
	start = begin(b);
	m->dispatch(b);
	m->combine(b);
	us[MEASURE_PAIR] = elapsed(start);
}

/* Each iteration begins with another method: none is always first after a pause. */
static void measure_all(struct bench *b, struct times times[NR_METHODS])
{
	double us[NR_MEASURES];
	uint32_t nr_methods = b->raw ? NR_METHODS : METHOD_RAW;

	for (uint32_t i = 0; i < b->args->warmup + b->args->iters; i++)
		for (uint32_t j = 0; j < nr_methods; j++) {
			uint32_t m = (i + j) % nr_methods;

			measure_rounds(b, &methods[m], us);
			for (int k = 0; k < NR_MEASURES && i >= b->args->warmup; k++)
				times[m].us[k][i - b->args->warmup] = us[k];
		}
}

static void measure_case(struct bench *b, struct report *report)
{
	struct times times[NR_METHODS];

	for (int m = 0; m < NR_METHODS; m++)
		if (times_create(&times[m], b->args->iters))
			die("out of memory for times");
	measure_all(b, times);
	for (int m = 0; m < NR_METHODS; m++) {
		if (measure_gather(&times[m], b->nr_ranks, mpi_allgather, NULL, report->spreads[m]))
			die("times could not be gathered");
		times_destroy(&times[m]);
	}
}

/* ---- a case ---------------------------------------------------------------------------------- */

static const char *not_compared(const struct bench *b)
{
	const struct tern_moe_config *c = &b->job->config;

	if (c->layout != TERN_CONTIGUOUS)
		return "only layout contiguous";
	if (b->job->nr_redundant || c->replica_ranks > 1)
		return "only jobs without replicas";
	return c->nr_slots > 1 ? "only one slot" : NULL;
}

static int run_case(struct bench *b, struct report *report)
{
	struct reason why;

	if (job_open(b->job, &why))
		die("%s", why.text);
	make_input(b);
	make_buffers(b);
	open_exchanges(b);
	report->bench_case = &b->bench_case;
	report->nr_wrong = compare(b);
	per_rank_dispatch(b);
	make_floors(b);
	open_raw(b);
	report->nr_methods = b->raw ? NR_METHODS : METHOD_RAW;
	report->wire_bytes = floor_bytes(&b->wire);
	report->job_bytes = floor_bytes(&b->whole);
	if (!report->nr_wrong)
		measure_case(b, report);
	report->nr_wrong += close_raw(b);
	close_exchanges(b);
	free_buffers(b);
	free_input(b);
	job_close(b->job);
	return report->nr_wrong ? 1 : 0;
}

static int run_cases(struct bench *b)
{
	struct report report = {.args = b->args, .nr_ranks = b->nr_ranks, .speaks = b->rank == 0};
	int failed = 0;

	if (report_open(&report))
		return 1;
	for (unsigned int i = 0; i < args_nr_cases(b->args); i++) {
		const char *why;

		if (args_case(b->args, i, (uint32_t)b->nr_ranks, &b->bench_case))
			continue;
		b->job = &b->bench_case.job;
		why = not_compared(b);
		if (why) {
			report_skipped(&report, why);
			continue;
		}
		failed |= run_case(b, &report);
		report_case(&report);
	}
	report_close(&report);
	return failed;
}

static int run(struct bench *b)
{
	struct tern_group_config config;
	int rc;

	if (b->nr_ranks > AGAINST_MAX_RANKS)
		die("%d ranks: %d at most", b->nr_ranks, AGAINST_MAX_RANKS);
	tern_group_config_init(&config);
	config.boot = (struct tern_boot){
		.rank = b->rank, .nr_ranks = b->nr_ranks, .allgather = mpi_allgather};
	check(tern_group_create(&config, &b->group), "tern_group_create");
	rc = run_cases(b);
	check(tern_group_destroy(b->group), "tern_group_destroy");
	return rc;
}

int main(int argc, char **argv)
{
	static struct bench_args args;
	struct bench b = {.args = &args};
	int rc = 2;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &b.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &b.nr_ranks);
	if (!args_parse(&args, "tern-against-mpi", argc, argv))
		rc = args.help ? 0 : run(&b);
	if (args.help && b.rank == 0)
		args_usage(&args);
	MPI_Finalize();
	return rc;
}
