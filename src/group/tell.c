/* SPDX-License-Identifier: Apache-2.0 */
/* Members whose memory is not mapped are told by messages of the group's engine what the others see
 * on boards. What they tell, the proxy writes into a copy of their board. Messages of a rank come
 * in their order, and all of them, or its connection is gone and so is the rank. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/private_memory.h"
#include "base/error.h"
#include "engine/engine.h"
#include "group/members_inside.h"

enum told_kind {
	TOLD_RECORD = 1,
	TOLD_WANTED,
	TOLD_ROUND,
	TOLD_PART,
	TOLD_FORWARDED
};

#define PART_BYTES 960 /* of a message: group.c has its length */

struct told_record {
	uint32_t kind, reserved;
	struct agreement_record record;
};

struct told_view { /* wanted, or forwarded */
	uint32_t kind, reserved;
	uint64_t view;
};

struct told_round {
	uint32_t kind, exchange, slot, reserved;
	struct member_round round;
};

struct told_part {
	uint32_t kind, origin;
	uint64_t number;
	uint32_t total, offset, bytes, reserved;
	uint8_t data[PART_BYTES];
};

/* ---- telling --------------------------------------------------------------------------------- */

/* Who takes nothing for as long as the engine waits is as good as silent. */
static void tell(tern_group *group, uint32_t to, const void *data, size_t bytes)
{
	struct tern_send send = {
		.size = sizeof(send), .peer = to, .data = data, .bytes = (uint32_t)bytes};

	if (engine_peer_down(group->engine, to, NULL))
		return;
	if (tern_engine_send(group->engine, &send, NULL))
		engine_let_go(group->engine, to, "it takes no messages");
}

static void tell_all(tern_group *group, const void *data, size_t bytes)
{
	const struct members *m = group->members;

	for (uint32_t r = 0; m->copies && r < (uint32_t)group->nr_ranks; r++)
		if (is_told(m, r) && members_have(group, r))
			tell(group, r, data, bytes);
}

void tell_record(tern_group *group)
{
	struct members *m = group->members;
	struct told_record told = {.kind = TOLD_RECORD, .record = m->agreement.mine};

	m->told_version = told.record.version;
	board_show(m->board, &told.record);
	tell_all(group, &told, sizeof(told));
}

void tell_wanted(tern_group *group, uint64_t view)
{
	struct told_view told = {.kind = TOLD_WANTED, .view = view};
	uint64_t before = atomic_load(&group->members->wanted);

	while (before < view)
		if (atomic_compare_exchange_strong(&group->members->wanted, &before, view)) {
			tell_all(group, &told, sizeof(told));
			return;
		}
}

static void each_round(tern_group *group,
	void (*tell_it)(tern_group *group, uint32_t to, const void *data, size_t bytes),
	uint32_t to)
{
	for (struct member_client *c = group->members->clients; c; c = c->next)
		for (uint32_t slot = 0; c->look && slot < c->nr_slots; slot++) {
			struct told_round told = {
				.kind = TOLD_ROUND, .exchange = c->number, .slot = slot};

			c->look(c->ctx, slot, &told.round);
			tell_it(group, to, &told, sizeof(told));
		}
}

static void tell_everybody(tern_group *group, uint32_t to, const void *data, size_t bytes)
{
	(void)to;
	tell_all(group, data, bytes);
}

void tell_rounds(tern_group *group)
{
	each_round(group, tell_everybody, 0);
}

void tell_rounds_to(tern_group *group, uint32_t to)
{
	each_round(group, tell, to);
}

void tell_part(tern_group *group, uint32_t to, uint32_t origin, const struct gathered *part)
{
	struct told_part told = {.kind = TOLD_PART,
		.origin = origin,
		.number = record_observe(&part->number),
		.total = part->nr};

	do {
		uint32_t left = told.total - told.offset;

		told.bytes = left < PART_BYTES ? left : PART_BYTES;
		memcpy(told.data, part->bytes + told.offset, told.bytes);
		tell(group, to, &told, offsetof(struct told_part, data) + told.bytes);
		told.offset += told.bytes;
	} while (told.offset < told.total);
}

void tell_forwarded(tern_group *group, uint32_t to)
{
	struct told_view told = {.kind = TOLD_FORWARDED, .view = group->view};

	tell(group, to, &told, sizeof(told));
}

/* ---- being told: on the proxy ---------------------------------------------------------------- */

/* What a rank tells of itself. */
static struct board *own_board(const struct members *m, uint32_t from)
{
	return m->coming[from] ? m->coming[from] : m->copies[from];
}

static void hear_record(struct members *m, uint32_t from, const struct told_record *told)
{
	const struct agreement_record *record = &told->record;

	if (!is_told(m, from))
		return;
	board_show(own_board(m, from), record);
	if (record->stopped || !set_is_empty(&record->gone))
		board_want(m->board, record->view.number + 1);
}

static void hear_round(struct members *m, uint32_t from, const struct told_round *told)
{
	for (struct member_client *c = m->clients; c; c = c->next)
		if (c->number == told->exchange && told->slot < c->nr_slots)
			c->hear(c->ctx, from, told->slot, &told->round);
}

/* Of the one whose part it is: who came in its place has a first gathering. */
static struct board *giver(const struct members *m, uint32_t from, const struct told_part *told)
{
	if (told->origin == from)
		return own_board(m, from);
	return told->number < m->first_gathering[told->origin] ? m->copies_before[told->origin]
							       : m->copies[told->origin];
}

/* Pieces come from the rank itself and, when it is gone, from several that have the part: of each
 * in their order, and with the same bytes. */
static void hear_part(
	struct members *m, uint32_t nr_ranks, uint32_t from, const struct told_part *told)
{
	struct gathered *part;
	struct board *board;

	if (told->origin >= nr_ranks || !is_told(m, told->origin) ||
		told->total > BOARD_GATHER_BYTES || told->offset > told->total ||
		told->bytes > told->total - told->offset || told->bytes > PART_BYTES)
		return;
	board = giver(m, from, told);
	if (!board)
		return;
	part = &board->gathered[told->number & 1];
	if (told->number <= record_observe(&part->number) || told->number < part->coming)
		return;
	if (told->number != part->coming) {
		part->coming = told->number;
		part->nr = 0;
	}
	if (told->offset != part->nr)
		return;
	memcpy(part->bytes + part->nr, told->data, told->bytes);
	part->nr += told->bytes;
	if (part->nr == told->total)
		record_publish(&part->number, told->number);
}

static void hear(void *ctx, uint32_t from, const void *data, uint32_t bytes)
{
	tern_group *group = ctx;
	struct members *m = group->members;
	union {
		uint32_t kind;
		struct told_record record;
		struct told_view view;
		struct told_round round;
		struct told_part part;
	} told;

	if (bytes > sizeof(told) || bytes < sizeof(told.kind))
		return;
	memset(&told, 0, offsetof(struct told_part, data));
	memcpy(&told, data, bytes);
	if (told.kind == TOLD_RECORD && bytes == sizeof(told.record))
		hear_record(m, from, &told.record);
	else if (told.kind == TOLD_WANTED && bytes == sizeof(told.view))
		board_want(m->board, told.view.view);
	else if (told.kind == TOLD_ROUND && bytes == sizeof(told.round))
		hear_round(m, from, &told.round);
	else if (told.kind == TOLD_PART && bytes >= offsetof(struct told_part, data) &&
		 bytes == offsetof(struct told_part, data) + told.part.bytes)
		hear_part(m, (uint32_t)group->nr_ranks, from, &told.part);
	else if (told.kind == TOLD_FORWARDED && bytes == sizeof(told.view))
		record_publish(&m->forwarded[from], told.view.view);
}

/* ---- opening --------------------------------------------------------------------------------- */

static struct board *copy_make(void)
{
	return private_map(sizeof(struct board), PRIVATE_DENSE);
}

static void copy_free(struct board *copy)
{
	if (copy)
		private_unmap(copy, sizeof(*copy));
}

static int copies_open(tern_group *group)
{
	struct members *m = group->members;
	size_t nr = (size_t)group->nr_ranks;
	bool all;

	m->copies = calloc(3 * nr, sizeof(*m->copies));
	m->forwarded = calloc(nr, sizeof(*m->forwarded));
	all = m->copies && m->forwarded;
	if (m->copies) {
		m->coming = m->copies + nr;
		m->copies_before = m->coming + nr;
	}
	for (uint32_t r = 0; all && r < nr; r++)
		if (is_told(m, r)) {
			m->copies[r] = copy_make();
			all = m->copies[r];
		}
	return all ? 0
		   : fail(TERN_ERR_NOMEM, "no memory for the boards of %d ranks", group->nr_ranks);
}

int tell_open(tern_group *group)
{
	struct members *m = group->members;
	struct engine_message_claim claim = {hear, group};
	bool any = false;
	int rc;

	for (uint32_t r = 0; r < (uint32_t)group->nr_ranks; r++)
		any = any || is_told(m, r);
	rc = any ? copies_open(group) : 0;
	if (any && !rc)
		rc = engine_claim_messages(group->engine, &claim);
	return group_agree_status(group, rc, "an elastic group");
}

void tell_close(tern_group *group)
{
	struct members *m = group->members;

	if (m->copies)
		engine_claim_messages(group->engine, NULL);
	for (int i = 0; m->copies && i < 3 * group->nr_ranks; i++)
		copy_free(m->copies[i]);
	free(m->copies);
	free(m->forwarded);
}

/* ---- who comes in another's place: on the proxy, which writes there -------------------------- */

struct replacing {
	struct members *members;
	uint32_t rank;
	uint64_t gathering;
	struct board *fresh, *old;
	bool keep;
};

static int expect(tern_engine *engine, void *ctx)
{
	struct replacing *r = ctx;

	(void)engine;
	r->old = r->members->coming[r->rank];
	r->members->coming[r->rank] = r->fresh;
	return 0;
}

static int replace(tern_engine *engine, void *ctx)
{
	struct replacing *r = ctx;
	struct members *m = r->members;
	struct board **old = r->keep ? &m->copies_before[r->rank] : &m->copies[r->rank];

	(void)engine;
	r->old = *old;
	if (r->keep)
		m->copies_before[r->rank] = m->copies[r->rank];
	m->copies[r->rank] = m->coming[r->rank];
	m->coming[r->rank] = NULL;
	m->first_gathering[r->rank] = r->gathering;
	return 0;
}

int tell_expect(tern_group *group, uint32_t rank)
{
	struct replacing r = {.members = group->members, .rank = rank, .fresh = copy_make()};

	if (!r.fresh)
		return fail(TERN_ERR_NOMEM, "no memory for a newcomer's board");
	engine_call(group->engine, expect, &r);
	copy_free(r.old);
	return 0;
}

void tell_forget(tern_group *group, uint32_t rank)
{
	struct replacing r = {.members = group->members, .rank = rank};

	engine_call(group->engine, expect, &r);
	copy_free(r.old);
}

void tell_replace(tern_group *group, uint32_t rank, uint64_t gathering, bool keep)
{
	struct replacing r = {
		.members = group->members, .rank = rank, .gathering = gathering, .keep = keep};

	engine_call(group->engine, replace, &r);
	copy_free(r.old);
}

/* The proxy, where there is one, reads the list. */
struct listing {
	struct members *members;
	struct member_client *client;
};

static int enter(tern_engine *engine, void *ctx)
{
	struct listing *l = ctx;

	(void)engine;
	l->client->next = l->members->clients;
	l->members->clients = l->client;
	return 0;
}

static int strike(tern_engine *engine, void *ctx)
{
	struct listing *l = ctx;
	struct member_client **at = &l->members->clients;

	(void)engine;
	while (*at && *at != l->client)
		at = &(*at)->next;
	if (*at)
		*at = l->client->next;
	return 0;
}

int members_add_client(tern_group *group, struct member_client *client)
{
	struct listing l = {group->members, client};

	return group->engine ? engine_call(group->engine, enter, &l) : enter(NULL, &l);
}

void members_remove_client(tern_group *group, struct member_client *client)
{
	struct listing l = {group->members, client};

	if (group->engine)
		engine_call(group->engine, strike, &l);
	else
		strike(NULL, &l);
}
