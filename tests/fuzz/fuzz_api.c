/* SPDX-License-Identifier: Apache-2.0 */
/* One rank, any settings, any calls in any order with any arguments. A model of the contract says
 * of each call whether it must be taken or refused; what is taken is verified, and what is refused
 * has changed nothing that the following calls could notice. */
#include <stdbool.h>
#include <string.h>

#include "tests/fuzz/bytes.h"
#include "tern.h"

#define MAX_SLOTS 3
#define MAX_TOKENS 8
#define MAX_EXPERTS 12
#define MAX_HIDDEN 144
#define MAX_CALLS 80

enum next {
	SEND,
	RECV,
	RESULTS,
	HOME
};

/* Which expert each place serves. */
struct tables {
	uint32_t version;
	int32_t logical[MAX_EXPERTS];
};

struct token {
	int32_t ids[TERN_MAX_TOPK];
	float weights[TERN_MAX_TOPK];
	uint8_t mark; /* of which all elements of its row are made */
};

struct shadow {
	enum next next;
	uint32_t nr_tokens;
	struct token tokens[MAX_TOKENS];
	struct tables tables; /* by which it was routed */
	uint64_t nr_rows, extent;
	uint64_t plan;  /* it was dispatched with */
	uint64_t again; /* that is combined again */
	struct tern_received received;
};

#define MAX_PLANS 3

/* A plan, and the round that it was made of. */
struct kept {
	uint64_t plan; /* 0: none */
	struct shadow shadow;
	uint32_t nr; /* rows: */
	uint64_t at[MAX_TOKENS * TERN_MAX_TOPK];
	struct tern_row rows[MAX_TOKENS * TERN_MAX_TOPK];
};

struct world {
	struct bytes b;
	struct tern_moe_config c;
	tern_moe *moe;
	uint32_t row_bytes, y_bytes;
	struct shadow slots[MAX_SLOTS];
	struct kept kept[MAX_PLANS];
	struct tables tables;
	struct tern_stats stats;
};

/* ---- settings -------------------------------------------------------------------------------- */

static uint32_t odd_number(struct bytes *b, uint32_t ordinary)
{
	static const uint32_t odd[] = {0, UINT32_MAX, UINT32_MAX - 15, 1u << 31, (1u << 31) - 16,
		1u << 26, (1u << 26) + 16, 1u << 24, (1u << 24) + 1, 65536, 65535, 33, 17};

	if (take_byte(b) < 248)
		return ordinary;
	return odd[take_byte(b) % (sizeof(odd) / sizeof(odd[0]))];
}

/* Near where 32 and 64 bits end, and so that a few experts' wrap to little. */
static uint64_t odd_capacity(struct bytes *b, const struct tern_moe_config *c)
{
	uint64_t experts = c->nr_experts ? c->nr_experts : 1;
	const uint64_t odd[] = {1ull << 31, UINT32_MAX, 1ull << 32, 1ull << 63, UINT64_MAX,
		UINT64_MAX / experts + 1};

	if (take_byte(b) < 240)
		return c->mode == TERN_HIGH_THROUGHPUT ? take_from(b, 0, 60) : 0;
	return odd[take_byte(b) % (sizeof(odd) / sizeof(odd[0]))];
}

static void draw_opaque(struct bytes *b, struct tern_moe_config *c)
{
	c->x_dtype = c->dispatch_dtype = TERN_BYTES;
	c->payload_bytes = odd_number(b, 16 * take_from(b, 1, MAX_HIDDEN * 4 / 16));
}

static void draw_config(struct bytes *b, struct tern_moe_config *c)
{
	static const uint32_t hidden[] = {8, 16, 32, 128, MAX_HIDDEN};

	tern_moe_config_init(c);
	c->mode = (enum tern_mode)odd_number(b, take_from(b, 0, 2));
	c->layout = (enum tern_layout)odd_number(b, take_from(b, 1, 3));
	c->reduce = (enum tern_reduce)odd_number(
		b, c->layout == TERN_BY_SOURCE ? 2 : take_from(b, 1, 2));
	c->weights = (enum tern_weights)odd_number(
		b, c->layout == TERN_BY_SOURCE ? 2 : take_from(b, 1, 2));
	c->hidden = odd_number(b, hidden[take_byte(b) % 5]);
	c->nr_experts = odd_number(b, take_from(b, 1, MAX_EXPERTS));
	c->topk = odd_number(
		b, take_from(b, 1, c->nr_experts - 1 < MAX_EXPERTS ? c->nr_experts : MAX_EXPERTS));
	c->max_tokens = odd_number(b, take_from(b, 1, MAX_TOKENS));
	c->x_dtype = c->dispatch_dtype = (enum tern_dtype)odd_number(b, take_from(b, 1, 3));
	c->combine_dtype = (enum tern_dtype)odd_number(b, take_from(b, 1, 3));
	c->nr_slots = odd_number(b, take_from(b, 1, MAX_SLOTS));
	c->alignment = odd_number(b, take_from(b, 1, 9));
	c->capacity = odd_capacity(b, c);
	c->replica_ranks = odd_number(b, 1);
	c->first_epoch = odd_number(b, 1);
	c->wait_ms = (int)odd_number(b, 1000);
	if (take_byte(b) >= 240)
		c->scale = (enum tern_scale)take_byte(b);
	if (take_byte(b) >= 240)
		c->dispatch_dtype = (enum tern_dtype)take_byte(b);
	if (take_byte(b) >= 248)
		c->placement.nr_physical = take_byte(b);
	if (take_byte(b) >= 224)
		draw_opaque(b, c);
	c->replicas = odd_number(b, take_from(b, 0, 2));
}

/* Taken settings must be within the contract; too large ones for this test are left alone. */
static bool settings_are_small(const struct tern_moe_config *c)
{
	MUST(c->topk >= 1 && c->topk <= TERN_MAX_TOPK && c->topk <= c->nr_experts &&
		c->nr_slots >= 1 && c->nr_slots <= 16);
	MUST(c->max_tokens >= 1 && c->hidden >= 1 && c->alignment >= 1 && c->replica_ranks == 1 &&
		c->wait_ms >= 0);
	MUST(c->replicas <= TERN_REPLICAS_LEAST_LOADED);
	MUST(c->mode <= 2 && c->layout >= 1 && c->layout <= 3);
	return c->max_tokens <= MAX_TOKENS && c->hidden <= MAX_HIDDEN &&
	       c->nr_experts <= MAX_EXPERTS && c->nr_slots <= MAX_SLOTS &&
	       c->x_dtype == c->dispatch_dtype && c->x_dtype != TERN_FP8_E4M3 &&
	       c->payload_bytes <= MAX_HIDDEN * 4 && c->alignment <= 4096 && c->capacity <= 4096;
}

/* What would take gigabytes before it is refused or taken. */
static bool settings_are_huge(const struct tern_moe_config *c)
{
	return (double)c->max_tokens * c->topk * c->nr_slots > 1e6 && c->max_tokens <= 1u << 24 &&
	       c->topk <= TERN_MAX_TOPK && c->nr_slots <= 16;
}

static uint32_t bytes_of(enum tern_dtype dtype)
{
	return dtype == TERN_FP32 ? 4 : 2;
}

static uint32_t row_bytes(const struct tern_moe_config *c)
{
	return c->x_dtype == TERN_BYTES ? c->payload_bytes : c->hidden * bytes_of(c->x_dtype);
}

/* However large: no product has wrapped. */
static void check_memory(const tern_moe *moe, const struct tern_moe_config *c)
{
	struct tern_memory memory = {.size = sizeof(memory)};
	uint32_t lists = c->layout == TERN_PADDED ? c->nr_experts : 1;
	double tokens = (double)c->nr_slots * c->max_tokens;
	double rows = c->capacity ? (double)c->nr_slots * lists * (double)c->capacity : tokens;
	double bytes = c->dispatch_dtype == TERN_FP8_E4M3 ? c->hidden : row_bytes(c);
	double results = tokens * c->hidden * bytes_of(c->combine_dtype);

	MUST(!tern_moe_memory(moe, &memory));
	MUST((double)memory.output_bytes >= rows * bytes);
	results += c->mode != TERN_HIGH_THROUGHPUT ? tokens * bytes : 0;
	MUST((double)memory.window_bytes >= results);
}

/* ---- expectations ---------------------------------------------------------------------------- */

static void check_unchanged(struct world *w)
{
	struct tern_stats now = {.size = sizeof(now)};

	MUST(!tern_moe_stats(w->moe, &now));
	MUST(!memcmp(&now, &w->stats, sizeof(now)));
	MUST(*tern_last_error());
}

static void check_taken(struct world *w)
{
	w->stats.size = sizeof(w->stats);
	MUST(!tern_moe_stats(w->moe, &w->stats));
}

/* One rank: all experts are local, in the places that the tables say. */
static uint64_t expected_rows(const struct world *w, const struct shadow *s, uint32_t place)
{
	uint64_t nr = 0;

	for (uint32_t t = 0; t < s->nr_tokens; t++)
		for (uint32_t k = 0; k < w->c.topk; k++)
			nr += s->tokens[t].ids[k] == s->tables.logical[place];
	return nr;
}

static bool goes_anywhere(const struct world *w, const struct token *token)
{
	for (uint32_t k = 0; k < w->c.topk; k++)
		if (token->ids[k] >= 0)
			return true;
	return false;
}

static bool over_capacity(const struct world *w, const struct shadow *s)
{
	uint64_t end = 0, tokens = 0;

	if (!w->c.capacity || w->c.mode != TERN_HIGH_THROUGHPUT)
		return false;
	for (uint32_t e = 0; e < w->c.nr_experts; e++) {
		uint64_t nr = expected_rows(w, s, e);

		if (w->c.layout == TERN_PADDED && nr > w->c.capacity)
			return true;
		end = (end + w->c.alignment - 1) / w->c.alignment * w->c.alignment + nr;
	}
	for (uint32_t t = 0; t < s->nr_tokens; t++)
		tokens += goes_anywhere(w, &s->tokens[t]);
	return w->c.layout == TERN_CONTIGUOUS
		       ? end > w->c.capacity
		       : w->c.layout == TERN_BY_SOURCE && tokens > w->c.capacity;
}

static uint8_t x[MAX_TOKENS * (MAX_HIDDEN * 4 + 32) + 64] __attribute__((aligned(64)));

/* ---- received -------------------------------------------------------------------------------- */

static void check_row(const struct world *w, const struct shadow *s, uint64_t at, uint32_t place)
{
	const struct tern_row *row = &s->received.rows[at];
	const struct token *token;
	const uint8_t *got = (const uint8_t *)s->received.x + at * w->row_bytes;

	MUST(row->rank == 0 && row->token >= 0 && row->token < (int32_t)s->nr_tokens);
	token = &s->tokens[row->token];
	if (w->c.layout != TERN_BY_SOURCE) {
		MUST(row->k >= 0 && row->k < (int32_t)w->c.topk &&
			token->ids[row->k] == s->tables.logical[place]);
		MUST(row->weight == token->weights[row->k]);
	}
	for (uint32_t i = 0; i < w->row_bytes; i++)
		MUST(got[i] == token->mark);
}

static void check_received(const struct world *w, struct shadow *s)
{
	uint32_t nr = w->c.layout == TERN_BY_SOURCE ? 1 : w->c.nr_experts;
	uint64_t sum = 0;

	for (uint32_t i = 0; i < nr; i++) {
		if (w->c.layout != TERN_BY_SOURCE)
			MUST(s->received.counts[i] == expected_rows(w, s, i));
		sum += s->received.counts[i];
		for (uint64_t at = s->received.offsets[i];
			at < s->received.offsets[i] + s->received.counts[i]; at++)
			check_row(w, s, at, i);
		MUST(!s->received.counts[i] ||
			s->received.offsets[i] + s->received.counts[i] <= s->received.extent);
	}
	MUST(sum == s->received.nr_rows);
	MUST(s->received.version == s->tables.version);
}

/* Where rows go; false: nowhere that is right. */
static bool draw_received(struct world *w, struct tern_received *received)
{
	uint8_t spoil = take_byte(&w->b);

	*received = (struct tern_received){
		.size = spoil == 1 ? 0 : sizeof(*received), .into_x = spoil == 2 ? x + 1 : NULL};
	return spoil != 1 && spoil != 2;
}

static void take_received(struct world *w, struct shadow *s, const struct tern_received *received)
{
	s->received = *received;
	s->next = RESULTS;
	check_received(w, s);
}

/* ---- dispatch -------------------------------------------------------------------------------- */

/* Draws tokens; false: one of their rows of ids must be refused. */
static bool draw_tokens(struct world *w, struct shadow *s)
{
	bool good = true;

	for (uint32_t t = 0; t < s->nr_tokens; t++) {
		struct token *token = &s->tokens[t];

		token->mark = take_byte(&w->b);
		for (uint32_t k = 0; k < w->c.topk; k++) {
			uint8_t draw = take_byte(&w->b);
			int32_t id = draw < 250 ? (int32_t)(draw % (w->c.nr_experts + 1)) - 1
						: draw * 65537 - 250 * 65537 - 3;

			token->weights[k] = (float)(draw % 3);
			token->ids[k] = id;
			good &= id >= -1 && id < (int32_t)w->c.nr_experts;
			for (uint32_t j = 0; j < k; j++)
				good &= id < 0 || token->ids[j] != id;
		}
	}
	return good;
}

static void call_send(struct world *w, uint32_t slot)
{
	static int32_t ids[MAX_TOKENS * TERN_MAX_TOPK];
	static int64_t wide_ids[MAX_TOKENS * TERN_MAX_TOPK];
	static float weights[MAX_TOKENS * TERN_MAX_TOPK];
	uint8_t kind = take_byte(&w->b), spoil = take_byte(&w->b);
	struct shadow fresh = {
		.nr_tokens = take_from(&w->b, 0, w->c.max_tokens), .tables = w->tables};
	uint32_t stride = w->row_bytes + (kind & 1 ? 32 : 0);
	bool wide = kind & 2, joined = kind & 4, ids_good = draw_tokens(w, &fresh), good = true;
	struct tern_received received;
	struct tern_dispatch args = {.size = sizeof(args),
		.slot = slot,
		.nr_tokens = fresh.nr_tokens,
		.x = x,
		.x_stride = kind & 1 ? stride : 0,
		.topk_ids = wide ? (void *)wide_ids : (void *)ids,
		.topk_ids_bits = wide ? 64 : 32,
		.topk_weights = weights};
	enum next next = slot < w->c.nr_slots ? w->slots[slot].next : HOME;
	/* With the second half in the same call, which goes on where the first is done. */
	bool some = fresh.nr_tokens > 0, right = next == SEND, again = joined && next == RECV;
	int rc;

	for (uint32_t t = 0; t < fresh.nr_tokens; t++) {
		memset(x + t * stride, fresh.tokens[t].mark, w->row_bytes);
		for (uint32_t k = 0; k < w->c.topk; k++) {
			wide_ids[t * w->c.topk + k] = ids[t * w->c.topk + k] =
				fresh.tokens[t].ids[k];
			weights[t * w->c.topk + k] = fresh.tokens[t].weights[k];
		}
	}
	switch (spoil) {
	case 1:
		args.size = take_byte(&w->b) % offsetof(struct tern_dispatch, topk_ids_bits);
		good = false;
		break;
	case 2:
		args.nr_tokens = odd_number(&w->b, w->c.max_tokens + 1);
		if (args.nr_tokens <= w->c.max_tokens) {
			args.nr_tokens = fresh.nr_tokens;
			break;
		}
		good = false;
		break;
	case 3:
		args.x = x + take_from(&w->b, 1, 15);
		good &= !some;
		break;
	case 4:
		args.x_stride = take_from(&w->b, 1, 15);
		good &= !some;
		break;
	case 5:
		args.topk_ids = NULL;
		good &= !some;
		break;
	case 6:
		args.topk_ids_bits = take_from(&w->b, 1, 31);
		good = false;
		break;
	case 7:
		args.scales = x;
		good = false;
		break;
	case 8:
		args.x = NULL;
		good &= !some;
		break;
	case 9: /* beside ids */
		args.plan = (1ull << 62) + take_byte(&w->b);
		good = false;
		break;
	}
	if (again && !args.plan)
		args.plan = w->slots[slot].plan;
	good &= !joined || draw_received(w, &received);
	good &= again ? args.nr_tokens == w->slots[slot].nr_tokens : ids_good;
	rc = joined ? tern_dispatch(w->moe, &args, &received) : tern_dispatch_send(w->moe, &args);
	if (right && good && over_capacity(w, &fresh)) {
		MUST(rc == TERN_ERR_CAPACITY);
		check_unchanged(w);
	} else if ((right || again) && good) {
		MUST(!rc);
		check_taken(w);
		fresh.next = RECV;
		w->slots[slot] = again ? w->slots[slot] : fresh;
		if (joined)
			take_received(w, &w->slots[slot], &received);
	} else {
		MUST(rc == TERN_ERR_INVALID ||
			(rc == TERN_ERR_STATE && ((!right && !again) || args.plan)));
		check_unchanged(w);
	}
	memset(x, 0xee, sizeof(x));
}

static void call_recv(struct world *w, uint32_t slot)
{
	struct tern_received received;
	bool right = slot < w->c.nr_slots && w->slots[slot].next == RECV;
	bool good = draw_received(w, &received);
	int rc = tern_dispatch_recv(w->moe, slot, &received);

	if (right && good) {
		MUST(!rc);
		check_taken(w);
		take_received(w, &w->slots[slot], &received);
	} else {
		MUST(rc == TERN_ERR_INVALID || (rc == TERN_ERR_STATE && !right));
		check_unchanged(w);
	}
}

/* ---- combine: small whole numbers, so that every sum is exact -------------------------------- */

static void put(const struct world *w, uint8_t *row, uint32_t i, float value)
{
	uint32_t bits;
	uint16_t half;

	memcpy(&bits, &value, sizeof(bits));
	if (w->c.combine_dtype == TERN_FP32) {
		memcpy(row + i * 4, &value, 4);
		return;
	}
	half = (uint16_t)(bits >> 16);
	if (w->c.combine_dtype == TERN_FP16) /* 0 or a normal number with few bits */
		half = bits ? (uint16_t)((bits >> 13) - (112u << 10)) : 0;
	memcpy(row + i * 2, &half, 2);
}

/* What experts make of a token: a number of the token and the route. */
static float result(const struct token *token, int32_t k)
{
	return (float)(token->mark % 4 + (k < 0 ? 1 : (uint32_t)k % 2));
}

static float expected_sum(const struct world *w, const struct token *token)
{
	bool weighted = w->c.weights == TERN_WEIGHTS_COMBINE;
	float sum = 0;

	if (w->c.layout == TERN_BY_SOURCE)
		return goes_anywhere(w, token) ? result(token, -1) : 0;
	for (int32_t k = 0; k < (int32_t)w->c.topk; k++)
		if (token->ids[k] >= 0)
			sum += (weighted ? token->weights[k] : 1.0f) * result(token, k);
	return sum;
}

static void fill_results(const struct world *w, const struct shadow *s, uint8_t *y, size_t stride)
{
	uint32_t nr = w->c.layout == TERN_BY_SOURCE ? 1 : w->c.nr_experts;

	for (uint32_t i = 0; i < nr; i++)
		for (uint64_t at = s->received.offsets[i];
			at < s->received.offsets[i] + s->received.counts[i]; at++)
			for (uint32_t h = 0; h < w->c.hidden; h++)
				put(w, y + at * stride, h,
					result(&s->tokens[s->received.rows[at].token],
						s->received.rows[at].k));
}

/* Where sums go: kept in *out, of which the second half gets `at` and `pass`. */
struct sums {
	uint8_t *out, *at;
	size_t stride, pass;
};

/* False: nowhere that is right. */
static bool draw_sums(struct world *w, struct sums *sums)
{
	uint8_t kind = take_byte(&w->b);
	size_t stride = w->y_bytes + (kind & 1 ? 16 : 0), bytes = w->c.max_tokens * stride + 16;

	*sums = (struct sums){.stride = stride, .pass = kind & 1 ? stride : 0};
	sums->out = aligned_alloc(16, bytes);
	MUST(sums->out);
	memset(sums->out, 0xdd, bytes);
	sums->at = sums->out + (kind == 252 ? 4 : 0);
	if (kind == 250 || kind == 251) {
		sums->pass = kind == 250 ? 15 : w->y_bytes - 16;
		sums->stride = w->y_bytes;
	}
	return kind != 250 && kind != 252 && (kind != 251 || !sums->pass);
}

static void take_sums(struct world *w, struct shadow *s, const struct sums *sums)
{
	uint8_t want[MAX_HIDDEN * 4];

	for (uint32_t t = 0; t < s->nr_tokens; t++) {
		for (uint32_t h = 0; h < w->c.hidden; h++)
			put(w, want, h, expected_sum(w, &s->tokens[t]));
		MUST(!memcmp(sums->out + t * sums->stride, want, w->y_bytes));
	}
	s->next = SEND;
}

/* With the second half in the same call, or before it. */
static void call_results(struct world *w, uint32_t slot, bool joined)
{
	enum next next = slot < w->c.nr_slots ? w->slots[slot].next : SEND;
	bool right = next == RESULTS || (joined && next == HOME), good = true;
	struct shadow *s = right ? &w->slots[slot] : NULL;
	uint8_t kind = take_byte(&w->b);
	size_t stride = w->y_bytes + (kind & 1 ? 16 : 0),
	       bytes = s ? s->received.extent * stride : 16;
	uint8_t *y = aligned_alloc(16, bytes ? bytes : 16);
	struct tern_combine args = {.size = sizeof(args),
		.slot = slot,
		.y = y,
		.y_stride = kind & 1 ? stride : 0,
		.plan = s ? s->again : 0};
	struct sums sums = {0};
	int rc;

	MUST(y);
	if (s && next == RESULTS)
		fill_results(w, s, y, stride);
	if (kind >= 250) {
		args.size = kind == 250 ? 3 : args.size;
		args.y = kind == 251 ? y + 8 : y;
		args.y_stride = kind == 252 ? 8 : kind == 253 ? stride + 4 : args.y_stride;
		good = kind >= 254;
	}
	good &= !joined || draw_sums(w, &sums);
	if (joined)
		rc = tern_combine(w->moe, &args, sums.at, sums.pass);
	else
		rc = tern_combine_send(w->moe, &args);
	free(y);
	if (right && good) {
		MUST(!rc);
		check_taken(w);
		s->next = HOME;
		if (joined)
			take_sums(w, s, &sums);
	} else {
		MUST(rc == TERN_ERR_INVALID || (rc == TERN_ERR_STATE && !right));
		check_unchanged(w);
	}
	free(sums.out);
}

static void call_home(struct world *w, uint32_t slot)
{
	bool right = slot < w->c.nr_slots && w->slots[slot].next == HOME;
	struct sums sums;
	bool good = draw_sums(w, &sums);
	int rc = tern_combine_recv(w->moe, slot, sums.at, sums.pass);

	if (right && good) {
		MUST(!rc);
		check_taken(w);
		take_sums(w, &w->slots[slot], &sums);
	} else {
		MUST(rc == TERN_ERR_INVALID || (rc == TERN_ERR_STATE && !right));
		check_unchanged(w);
	}
	free(sums.out);
}

/* ---- plans ----------------------------------------------------------------------------------- */

static struct kept *draw_kept(struct world *w)
{
	return &w->kept[take_byte(&w->b) % MAX_PLANS];
}

static void keep_rows(struct kept *kept, const struct world *w, const struct shadow *s)
{
	uint32_t nr = w->c.layout == TERN_BY_SOURCE ? 1 : w->c.nr_experts;

	kept->nr = 0;
	for (uint32_t i = 0; i < nr; i++)
		for (uint64_t at = s->received.offsets[i];
			at < s->received.offsets[i] + s->received.counts[i]; at++) {
			kept->at[kept->nr] = at;
			kept->rows[kept->nr++] = s->received.rows[at];
		}
}

static void call_plan(struct world *w, uint32_t slot)
{
	bool right = slot < w->c.nr_slots && w->slots[slot].next == RESULTS;
	struct kept *kept = draw_kept(w);
	uint64_t plan = kept->plan;
	int rc;

	if (plan) {
		MUST(!tern_plan_destroy(w->moe, plan));
		kept->plan = 0;
	}
	MUST(tern_plan_destroy(w->moe, plan) == TERN_ERR_STATE);
	rc = tern_plan_create(w->moe, slot, &kept->plan);
	if (!right) {
		MUST(!kept->plan && (rc == TERN_ERR_INVALID || rc == TERN_ERR_STATE));
		check_unchanged(w);
		return;
	}
	MUST(!rc && kept->plan && kept->plan != plan);
	kept->shadow = w->slots[slot];
	kept->shadow.plan = kept->shadow.again = 0;
	kept->shadow.extent = w->slots[slot].received.extent;
	keep_rows(kept, w, &w->slots[slot]);
}

/* Routed by the tables that hold now. */
static bool is_of_today(const struct world *w, const struct kept *kept)
{
	return kept->plan && !memcmp(&kept->shadow.tables, &w->tables, sizeof(w->tables));
}

/* As the plan's round was, but for x. */
static void call_send_again(struct world *w, uint32_t slot)
{
	bool right = slot < w->c.nr_slots && w->slots[slot].next == SEND;
	struct kept *kept = draw_kept(w);
	struct shadow fresh = kept->shadow;
	struct tern_dispatch args = {.size = sizeof(args),
		.slot = slot,
		.nr_tokens = fresh.nr_tokens,
		.x = x,
		.plan = kept->plan ? kept->plan : 1ull << 63};
	int rc;

	for (uint32_t t = 0; t < fresh.nr_tokens; t++) {
		fresh.tokens[t].mark = take_byte(&w->b);
		memset(x + t * w->row_bytes, fresh.tokens[t].mark, w->row_bytes);
	}
	rc = tern_dispatch_send(w->moe, &args);
	if (right && is_of_today(w, kept)) {
		MUST(!rc);
		check_taken(w);
		fresh.next = RECV;
		fresh.plan = kept->plan;
		w->slots[slot] = fresh;
	} else {
		MUST(rc == TERN_ERR_INVALID || rc == TERN_ERR_STATE);
		check_unchanged(w);
	}
	memset(x, 0xee, sizeof(x));
}

static void call_results_again(struct world *w, uint32_t slot)
{
	bool right = slot < w->c.nr_slots && w->slots[slot].next == SEND;
	struct kept *kept = draw_kept(w);
	size_t bytes = kept->plan ? kept->shadow.extent * w->y_bytes : 0;
	uint8_t *y = aligned_alloc(16, bytes + 16);
	struct tern_combine args = {.size = sizeof(args),
		.slot = slot,
		.y = y,
		.plan = kept->plan ? kept->plan : 1ull << 63};
	int rc;

	MUST(y);
	for (uint32_t t = 0; t < kept->shadow.nr_tokens; t++)
		kept->shadow.tokens[t].mark = take_byte(&w->b);
	for (uint32_t i = 0; kept->plan && i < kept->nr; i++)
		for (uint32_t h = 0; h < w->c.hidden; h++)
			put(w, y + kept->at[i] * w->y_bytes, h,
				result(&kept->shadow.tokens[kept->rows[i].token], kept->rows[i].k));
	rc = tern_combine_send(w->moe, &args);
	free(y);
	if (right && is_of_today(w, kept)) {
		MUST(!rc);
		check_taken(w);
		w->slots[slot] = kept->shadow;
		w->slots[slot].again = kept->plan;
		w->slots[slot].next = HOME;
	} else {
		MUST(rc == TERN_ERR_INVALID || rc == TERN_ERR_STATE);
		check_unchanged(w);
	}
}

static void call_release(struct world *w, uint32_t slot)
{
	bool right = slot < w->c.nr_slots && w->slots[slot].next == RESULTS;
	int rc = tern_release(w->moe, slot);

	if (right) {
		MUST(!rc);
		w->slots[slot].next = SEND;
	} else {
		MUST(rc == TERN_ERR_INVALID || rc == TERN_ERR_STATE);
		check_unchanged(w);
	}
}

/* ---- experts that move ----------------------------------------------------------------------- */

static void call_place(struct world *w)
{
	uint32_t nr = w->c.nr_experts, first = take_byte(&w->b) % nr, spoil = take_byte(&w->b);
	struct tables tables = {.version = take_byte(&w->b) % 4};
	const int32_t *logical = tables.logical;
	bool good = spoil != 1 && spoil != 2, once[MAX_EXPERTS] = {false};
	int rc;

	for (uint32_t p = 0; p < nr; p++) {
		int32_t expert = (int32_t)((first + p) % nr);

		tables.logical[p] = spoil < 64 && spoil > 2 ? take_byte(&w->b) - 2 : expert;
		expert = tables.logical[p];
		good &= expert >= 0 && expert < (int32_t)nr && !once[expert];
		if (good)
			once[expert] = true;
	}
	rc = tern_moe_place(
		w->moe, tables.version, spoil == 1 ? NULL : logical, nr + (spoil == 2 ? 1 : 0));
	if (good)
		w->tables = tables;
	MUST(rc == (good ? 0 : TERN_ERR_INVALID));
	if (rc)
		check_unchanged(w);
	for (uint32_t p = 0; p < nr; p++)
		MUST(tern_moe_local_expert(w->moe, p) == w->tables.logical[p]);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void make_call(struct world *w)
{
	uint8_t draw = take_byte(&w->b);
	uint32_t slot = draw < 250 ? draw / 8 % w->c.nr_slots : w->c.nr_slots + draw;
	enum next next = slot < w->c.nr_slots ? w->slots[slot].next : SEND;
	uint8_t plans = take_byte(&w->b);

	if (plans < 96) {
		(plans < 32          ? call_plan
			: plans < 64 ? call_send_again
				     : call_results_again)(w, slot);
		return;
	}
	if (plans < 112) {
		call_place(w);
		return;
	}
	switch (draw % 8 < 4 ? (int)next : draw % 8 - 4) { /* half of them the right one */
	case SEND:
		call_send(w, slot);
		break;
	case RECV:
		call_recv(w, slot);
		break;
	case RESULTS:
		if (draw & 64)
			call_release(w, slot);
		else
			call_results(w, slot, draw & 128);
		break;
	case HOME:
		call_home(w, slot);
		break;
	}
}

static void run_calls(struct world *w)
{
	w->row_bytes = row_bytes(&w->c);
	w->y_bytes = w->c.hidden * bytes_of(w->c.combine_dtype);
	for (uint32_t p = 0; p < w->c.nr_experts; p++)
		w->tables.logical[p] = (int32_t)p;
	check_taken(w);
	for (int i = 0; i < MAX_CALLS && w->b.left; i++)
		make_call(w);
	for (uint32_t slot = 0; slot < w->c.nr_slots; slot++) /* nothing is stuck */
		for (int i = 0; i < 3 && w->slots[slot].next != SEND; i++) {
			if (w->slots[slot].next == RECV)
				call_recv(w, slot);
			else if (w->slots[slot].next == RESULTS)
				call_results(w, slot, false);
			else
				call_home(w, slot);
		}
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	static tern_group *group;
	struct world *w = calloc(1, sizeof(*w));
	int rc;

	MUST(w);
	if (!group) {
		struct tern_group_config config;

		tern_group_config_init(&config);
		MUST(!tern_boot_self(&config.boot) && !tern_group_create(&config, &group));
	}
	w->b = (struct bytes){bytes, size};
	draw_config(&w->b, &w->c);
	rc = settings_are_huge(&w->c) ? TERN_ERR_NOMEM : tern_moe_create(group, &w->c, &w->moe);
	MUST(rc == 0 || rc == TERN_ERR_INVALID || rc == TERN_ERR_NOMEM || rc == TERN_ERR_SYSTEM);
	MUST((rc == 0) == (w->moe != NULL));
	if (!rc) {
		w->c.mode = (enum tern_mode)tern_moe_mode(w->moe);
		check_memory(w->moe, &w->c);
	}
	if (!rc && settings_are_small(&w->c))
		run_calls(w);
	MUST(!tern_moe_destroy(w->moe));
	free(w);
	return 0;
}
