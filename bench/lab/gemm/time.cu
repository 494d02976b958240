/* SPDX-License-Identifier: Apache-2.0 */
/* Both products of one rank's share, by graph replay with a cold L2, beside their floor: the
 * weights of experts that have rows once from memory, or the products of all rows, whichever is
 * more. */
#include "bench/lab/gemm/gemm.h"

#include <stdio.h>
#include <string.h>
#include <algorithm>
#include <vector>

#include "bench/lab/check.h"

#define FLUSH_BYTES (256u << 20)
#define MEMORY_BYTES_US 4.3e6
#define FP8_FLOP_US 1500e6
#define BF16_FLOP_US 790e6

struct preset {
	const char *name;
	enum layer_dtype dtype;
	uint32_t hidden, inner, experts, topk;
};

static const struct preset PRESETS[] = {
	{"deepseek-v3", LAYER_FP8, 7168, 2048, 256, 8},
	{"qwen3-30b-a3b", LAYER_FP8, 2048, 768, 128, 8},
	{"gpt-oss-120b", LAYER_BF16, 2880, 2880, 128, 4},
};

struct options {
	const char *preset; /* NULL: all */
	std::vector<uint32_t> ranks, tokens;
	uint32_t rounds, blocks;
	uint64_t seed;
	bool json;
	uint32_t early, drawn, clusters; /* products, a bit of each */
};

struct timed {
	struct lab_experts experts;
	cudaStream_t stream;
	cudaGraphExec_t graph;
	cudaEvent_t begin, end;
	void *flushed;
	uint64_t *marks[2];
};

static uint32_t random_below(uint64_t *state, uint32_t n)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((*state >> 32) * n >> 32);
}

/* Rows of the first rank's experts: uniform routing of all ranks' tokens. */
static std::vector<uint32_t> route(
	const struct preset *p, uint32_t ranks, uint32_t tokens, uint64_t seed)
{
	std::vector<uint32_t> counts(p->experts / ranks), taken(p->experts, 0);
	uint64_t state = seed;

	for (uint32_t t = 1; t <= tokens * ranks; t++)
		for (uint32_t k = 0; k < p->topk;) {
			uint32_t e = random_below(&state, p->experts);

			if (taken[e] == t)
				continue;
			taken[e] = t;
			k++;
			if (e < counts.size())
				counts[e]++;
		}
	return counts;
}

static void fill_all(struct lab_experts *e, uint64_t seed)
{
	struct lab_tensor_sizes sizes = lab_sizes(e);
	enum lab_numbers kind = e->shape.dtype == LAYER_FP8 ? LAB_FP8 : LAB_BF16;
	float weights = kind == LAB_FP8 ? 1 : 0.02f, scales = 0.02f;

	lab_fill(e->x, kind, sizes.x, 1, seed + 1);
	lab_fill(e->gate_up, kind, sizes.gate_up, weights, seed + 2);
	lab_fill(e->down, kind, sizes.down, weights, seed + 3);
	if (!sizes.x_scales)
		return;
	lab_fill(e->x_scales, LAB_FLOATS, sizes.x_scales, 1, seed + 4);
	lab_fill(e->gate_up_scales, LAB_FLOATS, sizes.gate_up_scales, scales, seed + 5);
	lab_fill(e->down_scales, LAB_FLOATS, sizes.down_scales, scales, seed + 6);
}

static void set_counts(struct lab_experts *e, const std::vector<uint32_t> &counts)
{
	std::vector<uint64_t> offsets(counts.size());
	uint64_t rows = 0;

	for (size_t i = 0; i < counts.size(); i++) {
		offsets[i] = rows;
		rows += counts[i];
	}
	CHECK(cudaMemcpy(e->counts, counts.data(), counts.size() * sizeof(uint32_t),
		cudaMemcpyHostToDevice));
	CHECK(cudaMemcpy(e->offsets, offsets.data(), counts.size() * sizeof(uint64_t),
		cudaMemcpyHostToDevice));
}

static int is_of(uint32_t products, int which)
{
	return (int)(products >> which & 1);
}

static void capture(struct timed *t, const struct options *o, bool empty)
{
	enum layer_dtype dtype = t->experts.shape.dtype;
	cudaGraph_t graph;

	CHECK(cudaStreamBeginCapture(t->stream, cudaStreamCaptureModeThreadLocal));
	if (empty)
		lab_nothing(t->stream);
	for (int which = 0; which < 2 && !empty; which++) {
		const struct layer_grid grid = {o->blocks, is_of(o->early, which),
			is_of(o->drawn, which), is_of(o->clusters, which)};

		CHECK(layer_launch(
			(enum layer_which)which, dtype, &t->experts.args[which], &grid, t->stream));
	}
	CHECK(cudaStreamEndCapture(t->stream, &graph));
	CHECK(cudaGraphInstantiate(&t->graph, graph, 0));
	CHECK(cudaGraphDestroy(graph));
}

static std::vector<float> replay(struct timed *t, uint32_t rounds)
{
	std::vector<float> us(rounds);

	for (uint32_t i = 0; i < rounds + 3; i++) {
		lab_flush(t->flushed, FLUSH_BYTES, t->stream);
		CHECK(cudaEventRecord(t->begin, t->stream));
		CHECK(cudaGraphLaunch(t->graph, t->stream));
		CHECK(cudaEventRecord(t->end, t->stream));
		CHECK(cudaStreamSynchronize(t->stream));
		if (i < 3)
			continue;
		CHECK(cudaEventElapsedTime(&us[i - 3], t->begin, t->end));
		us[i - 3] *= 1000;
	}
	std::sort(us.begin(), us.end());
	return us;
}

struct floor_us {
	double weights, flops;
};

static struct floor_us floor_of(const struct preset *p, const std::vector<uint32_t> &counts)
{
	double elements = 3.0 * p->hidden * p->inner, rows = 0, hit = 0;

	for (uint32_t c : counts) {
		rows += c;
		hit += c > 0;
	}
	return {hit * elements * (p->dtype == LAYER_FP8 ? 1 : 2) / MEMORY_BYTES_US,
		2 * rows * elements / (p->dtype == LAYER_FP8 ? FP8_FLOP_US : BF16_FLOP_US)};
}

#ifdef TERN_TRACE
static void give_marks(struct timed *t, const struct options *o)
{
	for (int which = 0; which < 2; which++) {
		CHECK(cudaMalloc(&t->marks[which], o->blocks * LAYER_MARKS * sizeof(uint64_t)));
		t->experts.args[which].marks = t->marks[which];
	}
}

static double mean(const std::vector<uint64_t> &v, int which, uint64_t from)
{
	double sum = 0;

	for (size_t b = 0; b < v.size(); b += LAYER_MARKS)
		sum += (double)v[b + which] - (double)from;
	return sum * LAYER_MARKS / v.size();
}

/* Of the last replay. Nanoseconds count from gate and up's first block. */
static void tell_marks(const struct timed *t, const struct options *o)
{
	std::vector<uint64_t> v(o->blocks * LAYER_MARKS);
	uint64_t start = 0;

	for (int which = 0; which < 2; which++) {
		uint64_t first = ~0ull, last = 0, tiles = 0;

		CHECK(cudaMemcpy(v.data(), t->marks[which], v.size() * sizeof(uint64_t),
			cudaMemcpyDeviceToHost));
		for (size_t b = 0; b < v.size(); b += LAYER_MARKS) {
			first = std::min(first, v[b + MARK_BEGIN]);
			last = std::max(last, v[b + MARK_END]);
			tiles += v[b + MARK_TILES];
		}
		start = which ? start : first;
		printf("#   %-7s first %7.2f us, begin %7.2f, listed %7.2f, end %7.2f, last %7.2f; "
		       "%lu tiles; waits for operands %.3f, for room %.3f of %.0f clocks\n",
			which ? "down" : "gate up", (first - start) / 1e3,
			mean(v, MARK_BEGIN, start) / 1e3, mean(v, MARK_LISTED, start) / 1e3,
			mean(v, MARK_END, start) / 1e3, (last - start) / 1e3, (unsigned long)tiles,
			mean(v, MARK_WAITED, 0) / mean(v, MARK_COMPUTED, 0),
			mean(v, MARK_ROOM, 0) / mean(v, MARK_COMPUTED, 0),
			mean(v, MARK_COMPUTED, 0));
	}
}
#else
static void give_marks(struct timed *, const struct options *)
{
}

static void tell_marks(const struct timed *, const struct options *)
{
}
#endif

static void tell(const struct options *o, const struct preset *p, uint32_t ranks, uint32_t tokens,
	const std::vector<uint32_t> &counts, const std::vector<float> &us, double mhz)
{
	struct floor_us floor = floor_of(p, counts);
	double least = std::max(floor.weights, floor.flops);
	double p50 = us[us.size() / 2], p99 = us[us.size() * 99 / 100];
	uint32_t hit = 0, rows = 0, most = 0;

	for (uint32_t c : counts) {
		hit += c > 0;
		rows += c;
		most = std::max(most, c);
	}
	printf(o->json ? "{\"preset\": \"%s\", \"dtype\": \"%s\", \"ranks\": %u, \"tokens\": %u, "
			 "\"rows\": %u, \"experts\": %u, \"most_rows\": %u, \"floor_us\": %.1f, "
			 "\"floor_of\": \"%s\", \"p50_us\": %.1f, \"p99_us\": %.1f, "
			 "\"p50_over_floor\": %.3f, \"sm_mhz\": %.0f}\n"
		       : "%-14s %s EP%-3u %5u tokens %6u rows of %3u experts, at most %5u  "
			 "floor %7.1f us (%s)  p50 %7.1f  p99 %7.1f  over floor %.3f  at %.0f "
			 "MHz\n",
		p->name, p->dtype == LAYER_FP8 ? "fp8" : "bf16", ranks, tokens, rows, hit, most,
		least, floor.weights >= floor.flops ? "weights" : "flops", p50, p99, p50 / least,
		mhz);
	fflush(stdout);
}

static void time_share(const struct options *o, const struct preset *p, uint32_t ranks)
{
	struct layer_shape shape = {p->dtype, p->experts / ranks, p->hidden, p->inner, 1};
	struct timed t = {};

	for (uint32_t tokens : o->tokens) {
		uint64_t rows = 0;

		for (uint32_t c : route(p, ranks, tokens, o->seed))
			rows += c;
		shape.rows_max = std::max(shape.rows_max, rows);
	}
	lab_experts_create(&shape, &t.experts);
	fill_all(&t.experts, o->seed);
	give_marks(&t, o);
	CHECK(cudaMalloc(&t.flushed, FLUSH_BYTES));
	CHECK(cudaStreamCreateWithFlags(&t.stream, cudaStreamNonBlocking));
	CHECK(cudaEventCreate(&t.begin));
	CHECK(cudaEventCreate(&t.end));
	CHECK(cudaDeviceSynchronize());
	capture(&t, o, false);
	for (uint32_t tokens : o->tokens) {
		std::vector<uint32_t> counts = route(p, ranks, tokens, o->seed);

		set_counts(&t.experts, counts);
		tell(o, p, ranks, tokens, counts, replay(&t, o->rounds), lab_megahertz(t.stream));
		tell_marks(&t, o);
	}
	CHECK(cudaGraphExecDestroy(t.graph));
	CHECK(cudaEventDestroy(t.begin));
	CHECK(cudaEventDestroy(t.end));
	CHECK(cudaStreamDestroy(t.stream));
	CHECK(cudaFree(t.flushed));
	CHECK(cudaFree(t.marks[0]));
	CHECK(cudaFree(t.marks[1]));
	lab_experts_destroy(&t.experts);
}

/* What the way of timing itself takes. */
static void time_nothing(const struct options *o)
{
	struct timed t = {};

	CHECK(cudaMalloc(&t.flushed, FLUSH_BYTES));
	CHECK(cudaStreamCreateWithFlags(&t.stream, cudaStreamNonBlocking));
	CHECK(cudaEventCreate(&t.begin));
	CHECK(cudaEventCreate(&t.end));
	capture(&t, o, true);
	std::vector<float> us = replay(&t, o->rounds);
	printf(o->json ? "{\"preset\": \"empty kernel\", \"p50_us\": %.1f, \"p99_us\": %.1f}\n"
		       : "empty kernel: p50 %.1f us, p99 %.1f (is in all that follows)\n",
		us[us.size() / 2], us[us.size() * 99 / 100]);
	CHECK(cudaGraphExecDestroy(t.graph));
	CHECK(cudaEventDestroy(t.begin));
	CHECK(cudaEventDestroy(t.end));
	CHECK(cudaStreamDestroy(t.stream));
	CHECK(cudaFree(t.flushed));
}

static std::vector<uint32_t> numbers(const char *text)
{
	std::vector<uint32_t> list;

	for (char *end; *text; text = *end ? end + 1 : end) {
		list.push_back(strtoul(text, &end, 10));
		if (end == text || !list.back() || (*end && *end != ',')) {
			fprintf(stderr, "tern-lab-gemm: '%s' is no list of numbers\n", text);
			exit(2);
		}
	}
	return list;
}

static uint32_t products(const char *text)
{
	static const char *const NAMES[] = {"none", "gate-up", "down", "both"};

	for (uint32_t bits = 0; bits < 4; bits++)
		if (!strcmp(text, NAMES[bits]))
			return bits;
	fprintf(stderr, "tern-lab-gemm: '%s' is none of none, gate-up, down, both\n", text);
	exit(2);
}

static int take_option(struct options *o, const char *name, const char *value)
{
	if (!strcmp(name, "--preset"))
		o->preset = value;
	else if (!strcmp(name, "--ranks"))
		o->ranks = numbers(value);
	else if (!strcmp(name, "--tokens"))
		o->tokens = numbers(value);
	else if (!strcmp(name, "--rounds"))
		o->rounds = numbers(value)[0];
	else if (!strcmp(name, "--seed"))
		o->seed = strtoull(value, NULL, 0);
	else if (!strcmp(name, "--early"))
		o->early = products(value);
	else if (!strcmp(name, "--clusters"))
		o->clusters = products(value);
	else if (!strcmp(name, "--drawn"))
		o->drawn = products(value);
	else
		return 0;
	return 1;
}

int gemm_time(int argc, char **argv)
{
	struct options o = {};
	int sms;

	o.ranks = {2, 32};
	o.tokens = {1, 8, 32, 128, 512, 4096};
	o.rounds = 30;
	o.seed = 1;
	o.early = products("down");
	for (int i = 0; i < argc; i++)
		if (!strcmp(argv[i], "--json"))
			o.json = true;
		else if (i + 1 < argc && take_option(&o, argv[i], argv[i + 1]))
			i++;
		else {
			fprintf(stderr, "tern-lab-gemm time: what is '%s'?\n", argv[i]);
			return 2;
		}
	CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
	o.blocks = sms;
	time_nothing(&o);
	for (const struct preset &p : PRESETS)
		for (uint32_t ranks : o.ranks)
			if ((!o.preset || !strcmp(o.preset, p.name)) && p.experts % ranks == 0)
				time_share(&o, &p, ranks);
	return 0;
}
