/* SPDX-License-Identifier: Apache-2.0 */
/* The dispatch halves: tokens to the ranks of their experts. */
#include <string.h>

#include "error.h"
#include "exchange.h"
#include "kernels/cpu/kernels.h"
#include "path.h"
#include "plan.h"
#include "wait.h"

/* ---- checking, before anything is sent ---- */

static int check_pointer(const char *name, const void *pointer, size_t stride, uint64_t row_bytes, uint32_t alignment)
{
	if (!pointer)
		return fail(TERN_ERR_INVALID, "dispatch: %s is NULL", name);
	if ((uintptr_t)pointer % alignment || stride % alignment)
		return fail(TERN_ERR_INVALID, "dispatch: %s at %p, stride %zu, has to be aligned to %u bytes", name, pointer, stride, alignment);
	if (stride && stride < row_bytes)
		return fail(TERN_ERR_INVALID, "dispatch: %s has a stride of %zu bytes for rows of %llu", name, stride, (unsigned long long)row_bytes);
	return 0;
}

static uint64_t x_row_bytes(const tern_moe *moe)
{
	const struct tern_moe_config *c = &moe->config;

	return c->x_dtype == TERN_BYTES ? c->payload_bytes : (uint64_t)c->hidden * dtype_bytes(c->x_dtype);
}

static int check_args(const tern_moe *moe, const struct tern_dispatch *args)
{
	bool fp8 = moe->config.x_dtype == TERN_FP8_E4M3;
	int rc;

	if (args->nr_tokens > moe->config.max_tokens)
		return fail(TERN_ERR_INVALID, "dispatch: %u tokens; this exchange was made for at most %u", args->nr_tokens, moe->config.max_tokens);
	if (args->topk_ids_bits != 0 && args->topk_ids_bits != 32 && args->topk_ids_bits != 64)
		return fail(TERN_ERR_INVALID, "dispatch: topk_ids_bits is %u; 32 or 64 are possible", args->topk_ids_bits);
	if (!fp8 && args->scales)
		return fail(TERN_ERR_INVALID, "dispatch: scales are given, but x is not FP8");
	if (args->nr_tokens == 0)
		return 0;
	rc = check_pointer("x", args->x, args->x_stride, x_row_bytes(moe), 16);
	if (!rc && fp8)
		rc = check_pointer("scales", args->scales, args->scales_stride, moe->layout.scales_bytes, scale_bytes(moe->config.scale));
	return rc ? rc : check_pointer("topk_ids", args->topk_ids, 0, 0, args->topk_ids_bits == 64 ? 8 : 4);
}

static int64_t topk_id(const struct tern_dispatch *args, size_t index)
{
	return args->topk_ids_bits == 64 ? ((const int64_t *)args->topk_ids)[index] : ((const int32_t *)args->topk_ids)[index];
}

/* Reads and checks all ids, and chooses replicas. Fills slot->physical, which means nothing until the slot's state moves on. */
static int read_routes(tern_moe *moe, struct slot *s, const struct tern_dispatch *args)
{
	uint32_t topk = moe->config.topk;

	memset(moe->seen, 0, moe->config.nr_experts * sizeof(*moe->seen));
	for (uint32_t t = 0; t < args->nr_tokens; t++)
		for (uint32_t k = 0; k < topk; k++) {
			size_t index = (size_t)t * topk + k;
			int64_t id = topk_id(args, index);

			if (id < -1 || id >= (int64_t)moe->config.nr_experts)
				return fail(TERN_ERR_INVALID, "dispatch: topk_ids[%u][%u] is %lld; experts are 0 to %u, or -1", t, k,
					(long long)id, moe->config.nr_experts - 1);
			s->physical[index] = -1;
			if (id < 0)
				continue;
			if (moe->seen[id] == t + 1)
				return fail(TERN_ERR_INVALID, "dispatch: topk_ids[%u] names expert %lld twice, again at column %u", t,
					(long long)id, k);
			moe->seen[id] = t + 1;
			s->physical[index] = (int32_t)placement_choose(&moe->placement, (uint32_t)id, token_source(moe, t), t);
		}
	return 0;
}

/* ---- the plan of a round ---- */

static void count_rows(tern_moe *moe, struct slot *s)
{
	struct token_rows rows;
	uint32_t topk = moe->config.topk;

	memset(s->rows_to, 0, moe->nr_ranks * sizeof(*s->rows_to));
	memset(s->rows_home, 0, moe->nr_ranks * sizeof(*s->rows_home));
	memset(s->routes_to, 0, moe->placement.nr_physical * sizeof(*s->routes_to));
	for (uint32_t t = 0; t < s->nr_tokens; t++) {
		const int32_t *physical = s->physical + (size_t)t * topk;
		bool mine = token_source(moe, t) == moe->rank;

		plan_token(&moe->placement, physical, topk, &rows);
		for (uint32_t i = 0; i < rows.nr_rows; i++) {
			s->rows_home[rows.rows[i].rank]++;
			s->rows_to[rows.rows[i].rank] += mine;
		}
		for (uint32_t k = 0; k < topk && mine; k++)
			if (physical[k] >= 0)
				s->routes_to[physical[k]]++;
	}
}

static void begin_round(tern_moe *moe, struct slot *s, const struct tern_dispatch *args)
{
	size_t routes = (size_t)args->nr_tokens * moe->config.topk;

	s->nr_tokens = args->nr_tokens;
	for (size_t i = 0; i < routes; i++)
		s->weights[i] = args->topk_weights ? args->topk_weights[i] : 1.0f;
	count_rows(moe, s);
}

/* A row is stored once for each rank, or straight into every place where it belongs. */
static uint64_t sent_bytes(const tern_moe *moe, const struct slot *s)
{
	const struct layout *l = &moe->layout;
	bool in_place = moe->config.mode == TERN_HIGH_THROUGHPUT && moe->config.layout != TERN_BY_SOURCE;
	uint64_t rows = 0, routes = 0;

	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		rows += s->rows_to[r];
	for (uint32_t p = 0; p < moe->placement.nr_physical; p++)
		routes += s->routes_to[p];
	return rows * l->header_bytes + (in_place ? routes : rows) * ((uint64_t)l->payload_bytes + l->scales_bytes);
}

static void count_stats(tern_moe *moe, const struct slot *s)
{
	struct tern_stats *stats = &moe->stats;
	uint32_t topk = moe->config.topk;
	uint64_t rows = 0, routes = 0;

	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		rows += s->rows_to[r];
	for (uint32_t p = 0; p < moe->placement.nr_physical; p++) {
		routes += s->routes_to[p];
		moe->expert_load[moe->placement.logical[p]] += s->routes_to[p];
	}
	stats->rounds++;
	stats->routes += routes;
	stats->rows += rows;
	stats->rows_away += rows - s->rows_to[moe->rank];
	stats->dispatch_bytes += sent_bytes(moe, s);
	for (uint32_t t = moe->rank - home_first(moe, moe->rank); t < s->nr_tokens; t += moe->config.replica_ranks) {
		bool away = false;

		for (uint32_t k = 0; k < topk; k++) {
			int32_t p = s->physical[(size_t)t * topk + k];

			away |= p >= 0 && moe->placement.rank[p] != moe->rank;
		}
		stats->tokens++;
		stats->tokens_away += away;
	}
}

/* ---- sending rows ---- */

struct row_source {
	const uint8_t *payload, *scales;
};

static struct row_source token_payload(const tern_moe *moe, const struct tern_dispatch *args, uint32_t token)
{
	const struct tern_moe_config *c = &moe->config;
	const uint8_t *x = (const uint8_t *)args->x + (size_t)token * (args->x_stride ? args->x_stride : x_row_bytes(moe));
	uint8_t *scales = moe->scratch + align_up(moe->layout.payload_bytes, 16);

	if (c->x_dtype != c->dispatch_dtype) {
		quantise_row(x, c->x_dtype, c->hidden, c->scale, moe->scratch, scales);
		return (struct row_source){moe->scratch, scales};
	}
	return (struct row_source){x, args->scales ? (const uint8_t *)args->scales + (size_t)token * (args->scales_stride ? args->scales_stride : moe->layout.scales_bytes) : NULL};
}

static void write_header(const tern_moe *moe, const struct slot *s, uint32_t token, const struct token_rows *rows, uint32_t row, struct row_header *header)
{
	header->token = token;
	header->nr_routes = (uint16_t)rows->rows[row].nr;
	header->rank_slot = (uint16_t)row;
	for (uint32_t i = 0; i < rows->rows[row].nr; i++) {
		uint32_t k = rows->k[rows->rows[row].first + i];
		size_t index = (size_t)token * moe->config.topk + k;

		header->routes[i] = (struct route){.expert = (uint16_t)moe->placement.local[s->physical[index]],
			.k = (uint16_t)k,
			.weight = s->weights[index]};
	}
}

/* Low latency: the row as a whole into this rank's region. */
static void store_in_region(const tern_moe *moe, bool stream, struct row_header *header, const struct row_source *row)
{
	const struct layout *l = &moe->layout;
	uint8_t *payload = (uint8_t *)header + l->header_bytes;

	copy_row(payload, row->payload, l->payload_bytes, stream);
	if (l->scales_bytes)
		memcpy(payload + l->payload_bytes, row->scales, l->scales_bytes);
}

/* A row into one position of the output that starts at `output`. */
static void store_in_output(const tern_moe *moe, bool stream, uint8_t *x, uint8_t *scales, uint64_t position, const struct row_source *row)
{
	const struct layout *l = &moe->layout;

	copy_row(x + position * l->payload_bytes, row->payload, l->payload_bytes, stream);
	if (l->scales_bytes)
		memcpy(scales + position * l->scales_bytes, row->scales, l->scales_bytes);
}

/* What the receiver learns of the row at `position`; all its routes in TERN_BY_SOURCE, else one. */
static void describe_row(const tern_moe *moe, uint8_t *output, uint64_t position, uint32_t source, const struct row_header *header, const struct route *route)
{
	const struct output_layout *o = &moe->layout.output;
	struct tern_row *row = (struct tern_row *)(output + o->rows) + position;
	uint32_t topk = moe->config.topk;
	int32_t *ids = (int32_t *)(output + o->topk_ids) + position * topk;
	float *weights = (float *)(output + o->topk_weights) + position * topk;

	*row = (struct tern_row){.rank = (int32_t)source, .token = (int32_t)header->token, .k = -1};
	if (moe->config.layout != TERN_BY_SOURCE) {
		row->k = route->k;
		row->weight = route->weight;
		return;
	}
	for (uint32_t k = 0; k < topk; k++) {
		ids[k] = -1;
		weights[k] = 0;
	}
	for (uint32_t i = 0; i < header->nr_routes; i++) {
		ids[header->routes[i].k] = header->routes[i].expert;
		weights[header->routes[i].k] = header->routes[i].weight;
	}
}

/* High throughput: the row to its final positions, and the positions into its header. */
static void store_in_place(tern_moe *moe, uint32_t slot, bool stream, uint32_t rank, const struct token_rows *rows, uint32_t row, struct row_header *header, const struct row_source *source)
{
	struct slot *s = &moe->slots[slot];
	uint8_t *output = path_place(moe, rank, layout_output(&moe->layout, slot));
	uint8_t *x = output + moe->layout.output.x, *scales = output + moe->layout.output.scales;

	if (moe->config.layout == TERN_BY_SOURCE) {
		uint64_t position = s->place[rank]++;

		for (uint32_t i = 0; i < header->nr_routes; i++)
			header->routes[i].position = (uint32_t)position;
		store_in_output(moe, stream, x, scales, position, source);
		describe_row(moe, output, position, moe->rank, header, NULL);
		return;
	}
	for (uint32_t i = 0; i < header->nr_routes; i++) {
		size_t index = (size_t)header->token * moe->config.topk + rows->k[rows->rows[row].first + i];
		uint64_t position = s->place[s->physical[index]]++;

		header->routes[i].position = (uint32_t)position;
		store_in_output(moe, stream, x, scales, position, source);
		describe_row(moe, output, position, moe->rank, header, &header->routes[i]);
	}
}

static void send_rows(tern_moe *moe, uint32_t slot, const struct tern_dispatch *args)
{
	struct slot *s = &moe->slots[slot];
	struct token_rows rows;
	bool stream = sent_bytes(moe, s) > moe->stream_bytes;

	memset(moe->cursor, 0, moe->nr_ranks * sizeof(*moe->cursor));
	for (uint32_t t = moe->rank - home_first(moe, moe->rank); t < s->nr_tokens; t += moe->config.replica_ranks) {
		struct row_source source;

		plan_token(&moe->placement, s->physical + (size_t)t * moe->config.topk, moe->config.topk, &rows);
		if (rows.nr_rows)
			source = token_payload(moe, args, t);
		for (uint32_t i = 0; i < rows.nr_rows; i++) {
			uint32_t rank = rows.rows[i].rank;
			uint8_t *region = path_place(moe, rank, layout_region(&moe->layout, slot, moe->rank));
			struct row_header *header = header_at(moe, region, moe->cursor[rank]++);

			write_header(moe, s, t, &rows, i, header);
			if (moe->config.mode == TERN_LOW_LATENCY)
				store_in_region(moe, stream, header, &source);
			else
				store_in_place(moe, slot, stream, rank, &rows, i, header, &source);
		}
	}
	if (stream)
		stream_fence();
}

/* Low latency: how many rows each of the destination's experts gets, in front of its region. */
static void send_expert_counts(tern_moe *moe, uint32_t slot)
{
	const struct slot *s = &moe->slots[slot];

	for (uint32_t p = 0; p < moe->placement.nr_physical; p++) {
		uint8_t *region = path_place(moe, moe->placement.rank[p], layout_region(&moe->layout, slot, moe->rank));

		((uint32_t *)region)[moe->placement.local[p]] = s->routes_to[p];
	}
}

static enum word_kind counts_word(uint32_t epoch)
{
	return epoch & 1 ? WORD_COUNTS_ODD : WORD_COUNTS_EVEN;
}

static void send_all_counts(tern_moe *moe, uint32_t slot)
{
	const struct slot *s = &moe->slots[slot];

	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		uint32_t *counts = (uint32_t *)path_place(moe, r, layout_counts(&moe->layout, slot, s->epoch, moe->rank));

		memcpy(counts, s->routes_to, moe->placement.nr_physical * sizeof(*counts));
		memcpy(counts + moe->placement.nr_physical, s->rows_to, moe->nr_ranks * sizeof(*counts));
		path_publish(moe, r, slot, counts_word(s->epoch), TERN_PHASE_COUNTS, s->rows_to[r]);
	}
}

/* All counts are here: where this rank's rows go, and what it will receive. Every rank adds up the same numbers, so all come to
 * the same verdict on capacity. */
static int place_all_rows(tern_moe *moe, uint32_t slot)
{
	const struct layout *l = &moe->layout;
	struct slot *s = &moe->slots[slot];
	uint64_t *spans = moe->totals + l->nr_physical;
	struct plan_counts counts = {own(moe, layout_counts(l, slot, s->epoch, 0)), l->counts_bytes, l->nr_ranks, l->nr_physical};
	struct plan_limits limits = {moe->config.layout, moe->config.alignment, l->capacity};
	int over = plan_places(&moe->placement, &counts, &limits, moe->rank, s->place, moe->totals);

	if (over >= 0) {
		s->epoch++;
		s->state = SLOT_IDLE;
		return fail(TERN_ERR_CAPACITY, "rank %d would receive more than its capacity of %llu rows%s (slot %u, epoch %u); no row was sent",
			over, (unsigned long long)l->capacity, moe->config.layout == TERN_PADDED ? " for one expert" : "", slot, s->epoch - 1);
	}
	s->extent = spans[moe->rank];
	for (uint32_t r = 0; r < moe->nr_ranks; r++)
		s->rows_from[r] = ((const uint32_t *)(counts.counts + r * counts.stride))[l->nr_physical + moe->rank];
	for (uint32_t p = 0; p < l->nr_physical && moe->config.layout != TERN_BY_SOURCE; p++)
		if (moe->placement.rank[p] == moe->rank)
			s->counts[moe->placement.local[p]] = (uint32_t)moe->totals[p];
	return 0;
}

static int wait_for_released(tern_moe *moe, uint32_t slot)
{
	struct slot *s = &moe->slots[slot];
	int rc = wait_for_all(moe, slot, WORD_COMBINE, TERN_PHASE_COMBINE);

	if (rc)
		return rc;
	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		uint64_t word = arrival_observe((struct arrival *)own(moe, layout_word(&moe->layout, slot, WORD_COMBINE, r)));

		if (word_count(word) != WORD_RELEASED) {
			fail(TERN_ERR_PROTOCOL, "rank %u combined what rank %u released (slot %u, epoch %u)", r, moe->rank, slot, s->epoch);
			return exchange_fail(moe, TERN_ERR_PROTOCOL, (int)r);
		}
	}
	s->epoch++;
	s->state = SLOT_IDLE;
	return 0;
}

static int send_counts_first(tern_moe *moe, uint32_t slot)
{
	struct slot *s = &moe->slots[slot];
	int rc;

	if (s->state == SLOT_IDLE) {
		send_all_counts(moe, slot);
		s->state = SLOT_COUNTED;
	}
	rc = wait_for_all(moe, slot, counts_word(s->epoch), TERN_PHASE_COUNTS);
	return rc ? rc : place_all_rows(moe, slot);
}

static int check_state(tern_moe *moe, const struct tern_dispatch *args)
{
	struct slot *s;
	int rc = moe && args && args->size == sizeof(*args) ? slot_check(moe, args->slot, "tern_dispatch_send")
							     : fail(TERN_ERR_INVALID, "tern_dispatch_send: moe or args is NULL, or args.size is wrong");

	if (rc)
		return rc;
	s = &moe->slots[args->slot];
	if (s->state == SLOT_COUNTED && s->nr_tokens != args->nr_tokens)
		return fail(TERN_ERR_INVALID, "dispatch: called again with %u tokens; its counts announced %u", args->nr_tokens, s->nr_tokens);
	if (s->state != SLOT_IDLE && s->state != SLOT_RELEASED && s->state != SLOT_COUNTED)
		return slot_wrong_state(moe, args->slot, "tern_dispatch_send");
	return check_args(moe, args);
}

int tern_dispatch_send(tern_moe *moe, const struct tern_dispatch *args)
{
	struct slot *s;
	int rc = check_state(moe, args);

	if (rc)
		return rc;
	s = &moe->slots[args->slot];
	if (s->state != SLOT_COUNTED) {
		rc = read_routes(moe, s, args);
		if (!rc && s->state == SLOT_RELEASED)
			rc = wait_for_released(moe, args->slot);
		if (rc)
			return rc;
		begin_round(moe, s, args);
	}
	if (moe->config.mode == TERN_HIGH_THROUGHPUT) {
		rc = send_counts_first(moe, args->slot);
		if (rc)
			return rc;
	} else {
		send_expert_counts(moe, args->slot);
	}
	send_rows(moe, args->slot, args);
	for (uint32_t i = 0; i < moe->nr_ranks; i++) { /* starting after itself, so that the ranks do not all ring the same one */
		uint32_t r = (moe->rank + 1 + i) % moe->nr_ranks;

		path_publish(moe, r, args->slot, WORD_DISPATCH, TERN_PHASE_DISPATCH, s->rows_to[r]);
	}
	count_stats(moe, s);
	s->state = SLOT_DISPATCHED;
	return 0;
}

/* ---- receiving ---- */

/* How many rows each source announced; high throughput knows already. */
static int check_words(tern_moe *moe, uint32_t slot)
{
	const struct layout *l = &moe->layout;
	struct slot *s = &moe->slots[slot];
	bool known = moe->config.mode == TERN_HIGH_THROUGHPUT;

	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		uint32_t rows = word_count(arrival_observe((struct arrival *)own(moe, layout_word(l, slot, WORD_DISPATCH, r))));

		if (rows > l->share_tokens || (known && rows != s->rows_from[r])) {
			fail(TERN_ERR_PROTOCOL, "rank %u announced %u rows to rank %u; %u were possible (slot %u, epoch %u)", r, rows,
				moe->rank, known ? s->rows_from[r] : l->share_tokens, slot, s->epoch);
			return exchange_fail(moe, TERN_ERR_PROTOCOL, (int)r);
		}
		s->rows_from[r] = rows;
	}
	return 0;
}

static void add_up_experts(tern_moe *moe, uint32_t slot)
{
	struct slot *s = &moe->slots[slot];

	memset(s->counts, 0, moe->nr_local * sizeof(*s->counts));
	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		const uint32_t *counts = (const uint32_t *)own(moe, layout_region(&moe->layout, slot, r));

		for (uint32_t e = 0; e < moe->nr_local; e++)
			s->counts[e] += counts[e];
	}
}

/* counts are known (BY_SOURCE: rows_from); from them offsets, rows and extent. False: more rows than correct peers could send. */
static bool set_offsets(tern_moe *moe, struct slot *s)
{
	uint32_t nr = moe->nr_local;
	uint64_t end = 0;
	bool fits = true;

	if (moe->config.layout == TERN_BY_SOURCE) {
		nr = moe->nr_ranks;
		memcpy(s->counts, s->rows_from, nr * sizeof(*s->counts));
	}
	s->nr_rows = 0;
	for (uint32_t i = 0; i < nr; i++) {
		s->nr_rows += s->counts[i];
		fits &= s->counts[i] <= moe->layout.capacity;
		if (moe->config.layout == TERN_PADDED)
			s->offsets[i] = i * moe->layout.capacity;
		else
			s->offsets[i] = moe->config.layout == TERN_CONTIGUOUS ? align_up(end, moe->config.alignment) : end;
		end = s->offsets[i] + s->counts[i];
	}
	s->extent = moe->config.layout == TERN_PADDED ? nr * moe->layout.capacity : end;
	return fits && s->extent <= moe->layout.positions;
}

static int bad_row(tern_moe *moe, uint32_t slot, uint32_t source, uint32_t row)
{
	fail(TERN_ERR_PROTOCOL, "row %u from rank %u contradicts its counts (slot %u, epoch %u)", row, source, slot, moe->slots[slot].epoch);
	return exchange_fail(moe, TERN_ERR_PROTOCOL, (int)source);
}

/* Low latency: one row from its region to its positions, which combine finds in the header. */
static bool unpack_row(tern_moe *moe, struct slot *s, bool stream, uint32_t source, struct row_header *header, uint64_t *next_row)
{
	const struct layout *l = &moe->layout;
	const uint8_t *payload = (const uint8_t *)header + l->header_bytes;
	struct row_source row = {payload, payload + l->payload_bytes};

	if (header->nr_routes < 1 || header->nr_routes > l->topk)
		return false;
	for (uint32_t i = 0; i < header->nr_routes; i++) {
		struct route *route = &header->routes[i];
		uint64_t position;

		if (route->expert >= moe->nr_local || route->k >= l->topk)
			return false;
		if (moe->config.layout == TERN_BY_SOURCE) {
			route->position = (uint32_t)*next_row;
			continue;
		}
		if (moe->cursor[route->expert] >= s->counts[route->expert])
			return false;
		position = s->offsets[route->expert] + moe->cursor[route->expert]++;
		route->position = (uint32_t)position;
		store_in_output(moe, stream, s->x, s->scales, position, &row);
		describe_row(moe, s->output, position, source, header, route);
	}
	if (moe->config.layout == TERN_BY_SOURCE) {
		store_in_output(moe, stream, s->x, s->scales, *next_row, &row);
		describe_row(moe, s->output, *next_row, source, header, NULL);
	}
	++*next_row;
	return true;
}

static int unpack_rows(tern_moe *moe, uint32_t slot)
{
	struct slot *s = &moe->slots[slot];
	uint64_t next_row = 0;
	bool stream = s->nr_rows * moe->layout.payload_bytes > moe->stream_bytes;

	memset(moe->cursor, 0, moe->layout.max_local * sizeof(*moe->cursor));
	for (uint32_t r = 0; r < moe->nr_ranks; r++) {
		uint8_t *region = own(moe, layout_region(&moe->layout, slot, r));

		for (uint32_t i = 0; i < s->rows_from[r]; i++)
			if (!unpack_row(moe, s, stream, r, header_at(moe, region, i), &next_row))
				return bad_row(moe, slot, r, i);
	}
	if (stream)
		stream_fence();
	return 0;
}

static int choose_output(tern_moe *moe, struct slot *s, const struct tern_received *received)
{
	bool fp8 = moe->layout.scales_bytes != 0;

	if (received->into_x && moe->config.mode == TERN_HIGH_THROUGHPUT)
		return fail(TERN_ERR_INVALID, "dispatch_recv: into_x is given, but in high-throughput mode rows arrive in library memory");
	if (received->into_x && ((uintptr_t)received->into_x % 16 || (fp8 && !received->into_scales)))
		return fail(TERN_ERR_INVALID, "dispatch_recv: into_x is not aligned to 16 bytes, or into_scales is NULL with FP8");
	s->x = received->into_x ? received->into_x : s->output + moe->layout.output.x;
	s->scales = received->into_x ? received->into_scales : s->output + moe->layout.output.scales;
	return 0;
}

static void describe_received(const tern_moe *moe, const struct slot *s, struct tern_received *received)
{
	const struct output_layout *o = &moe->layout.output;
	bool by_source = moe->config.layout == TERN_BY_SOURCE;

	received->x = s->x;
	received->scales = moe->layout.scales_bytes ? s->scales : NULL;
	received->counts = s->counts;
	received->offsets = s->offsets;
	received->rows = (const struct tern_row *)(s->output + o->rows);
	received->topk_ids = by_source ? (const int32_t *)(s->output + o->topk_ids) : NULL;
	received->topk_weights = by_source ? (const float *)(s->output + o->topk_weights) : NULL;
	received->nr_rows = s->nr_rows;
	received->extent = s->extent;
}

int tern_dispatch_recv(tern_moe *moe, uint32_t slot, struct tern_received *received)
{
	struct slot *s;
	int rc = slot_check(moe, slot, "tern_dispatch_recv");

	if (!rc && (!received || received->size != sizeof(*received)))
		rc = fail(TERN_ERR_INVALID, "tern_dispatch_recv: received is NULL or received.size is wrong");
	if (rc)
		return rc;
	s = &moe->slots[slot];
	if (s->state != SLOT_DISPATCHED)
		return slot_wrong_state(moe, slot, "tern_dispatch_recv");
	rc = choose_output(moe, s, received);
	rc = rc ? rc : wait_for_all(moe, slot, WORD_DISPATCH, TERN_PHASE_DISPATCH);
	rc = rc ? rc : check_words(moe, slot);
	if (rc)
		return rc;
	if (moe->config.mode == TERN_LOW_LATENCY && moe->config.layout != TERN_BY_SOURCE)
		add_up_experts(moe, slot);
	if (!set_offsets(moe, s)) {
		fail(TERN_ERR_PROTOCOL, "%llu rows came to rank %u, more than its peers may send (slot %u, epoch %u)",
			(unsigned long long)s->nr_rows, moe->rank, slot, s->epoch);
		return exchange_fail(moe, TERN_ERR_PROTOCOL, -1);
	}
	if (moe->config.mode == TERN_LOW_LATENCY)
		rc = unpack_rows(moe, slot);
	if (rc)
		return rc;
	moe->stats.rows_received += s->nr_rows;
	describe_received(moe, s, received);
	s->state = SLOT_RECEIVED;
	return 0;
}

int tern_dispatch(tern_moe *moe, const struct tern_dispatch *args, struct tern_received *received)
{
	int rc = 0;

	if (!moe || !args || args->size != sizeof(*args))
		return fail(TERN_ERR_INVALID, "tern_dispatch: moe or args is NULL, or args.size is wrong");
	if (!received || received->size != sizeof(*received))
		return fail(TERN_ERR_INVALID, "tern_dispatch: received is NULL or received.size is wrong");
	/* Called again after a time-out in its second half, it goes on there. */
	if (moe->failed || args->slot >= moe->config.nr_slots || moe->slots[args->slot].state != SLOT_DISPATCHED)
		rc = tern_dispatch_send(moe, args);
	return rc ? rc : tern_dispatch_recv(moe, args->slot, received);
}
