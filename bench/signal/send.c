/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/signal/send.h"
#include "engine/engine.h"

static enum tern_signal_policy engine_policy(enum signal_policy policy)
{
	static const enum tern_signal_policy policies[NR_SIGNAL_POLICIES] = {BASELINE_PUT_ONLY,
		BASELINE_COUPLED, BASELINE_COUPLED_ALL_PEERS, TERN_SIGNAL_DECOUPLED,
		TERN_SIGNAL_NIC_FENCE, TERN_SIGNAL_PERSEUS, TERN_SIGNAL_IMMEDIATE};

	return policies[policy];
}

static struct tern_put make_put(const struct signal_job *job, const struct signal_sender *sender,
	const struct signal_transfer *transfer, uint64_t word)
{
	const struct signal_memory *memory = &sender->memory;
	uint64_t at = signal_data_at(job, memory, transfer->place);

	return (struct tern_put){.peer = transfer->peer,
		.local = sender->region,
		.remote = sender->remotes[transfer->peer],
		.local_offset = memory->source_at + at,
		.remote_offset = at,
		.bytes = job->bytes,
		.signal_remote = sender->remotes[transfer->peer],
		.signal_offset = memory->words_at + (uint64_t)transfer->place * WORD_BYTES,
		.signal = job->policy == SIGNAL_IMM ? transfer->place : word};
}

struct batch {
	const struct signal_transfer *transfers;
	uint32_t nr;
	uint64_t word;
	tern_done_fn done;
	void *ctx;
};

static int send_group(
	const struct signal_job *job, const struct signal_sender *sender, const struct batch *batch)
{
	tern_op op;
	uint32_t i;
	int rc = engine_put_group(sender->engine, engine_policy(job->policy), batch->nr,
		batch->done, batch->ctx, &op);

	for (i = 0; i < batch->nr && !rc; i++) {
		struct tern_put put = make_put(job, sender, &batch->transfers[i], batch->word);

		rc = tern_engine_put(sender->engine, op, &put, 0);
	}
	return rc ? rc : tern_op_forget(sender->engine, op);
}

int signal_send(const struct signal_job *job, const struct signal_sender *sender,
	const struct signal_plan *plan, uint64_t word, tern_done_fn done, void *ctx,
	uint32_t *nr_groups)
{
	struct batch batch = {.word = word, .done = done, .ctx = ctx};
	uint32_t i, from = 0;
	int rc = 0;

	for (i = 0; i < plan->nr && !rc; i++) {
		if (i + 1 < plan->nr &&
			!(plan->transfers[i].last_of_group && signal_policy_groups(job->policy)))
			continue;
		batch.transfers = &plan->transfers[from];
		batch.nr = i + 1 - from;
		++*nr_groups;
		rc = send_group(job, sender, &batch);
		from = i + 1;
	}
	return rc;
}
