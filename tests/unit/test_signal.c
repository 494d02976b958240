/* SPDX-License-Identifier: Apache-2.0 */
/* Put-with-signal in the simulated network: no policy lets a signal be seen before its data, in
 * whatever weather; and the engine takes exactly as long as the same policy written out by hand. */
#include "bench/signal/signal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/exchange/ranks.h"

typedef int simulate_fn(
	const struct signal_job *job, struct signal_result *result, struct reason *why);

static struct signal_result simulate(simulate_fn *run, const struct signal_job *job)
{
	struct signal_result result;
	struct reason why;

	if (signal_job_check(job, &why) || run(job, &result, &why))
		fail_msg("%s: %s", signal_policy_name(job->policy), why.text);
	assert_int_equal(result.nr_wrong, 0);
	return result;
}

static void small_job(struct signal_job *job)
{
	signal_job_init(job);
	job->nr_ranks = 6;
	job->ranks_per_node = 2;
	job->concurrency = 12;
	job->bytes = 1000;
	job->group = 2;
	job->iters = 3;
	job->watch = true;
}

static void foul_weather(struct sim_settings *settings, uint64_t seed)
{
	sim_settings_foul(settings, seed);
	settings->fence = true;
	settings->ordered = seed % 4 == 3;
}

static void test_never_early(void **state)
{
	struct signal_result result;
	struct signal_job job;
	unsigned int policy;
	uint64_t seed;

	(void)state;
	for (seed = 0; seed < (uint64_t)scaled(16); seed++)
		for (policy = SIGNAL_COUPLED; policy < NR_SIGNAL_POLICIES; policy++) {
			small_job(&job);
			foul_weather(&job.network, seed);
			job.seed = seed;
			job.policy = (enum signal_policy)policy;
			result = simulate(signal_simulate_engine, &job);
			assert_int_equal(result.early, 0);
		}
}

/* The check above would notice: without fences and drains signals do overtake. */
static void test_early_is_noticed(void **state)
{
	struct signal_result result;
	struct signal_job job;

	(void)state;
	small_job(&job);
	foul_weather(&job.network, 1);
	job.network.fence = false;
	job.network.ordered = true; /* which it then is not: the pieces are late all the same */
	job.policy = SIGNAL_NIC_FENCE;
	job.network.lies = true;
	result = simulate(signal_simulate_engine, &job);
	assert_true(result.early > 0);
}

static void test_agrees_with_steps(void **state)
{
	static const uint64_t bytes[] = {64, 4096, 100000};
	struct signal_job job;
	unsigned int policy, i;

	(void)state;
	for (i = 0; i < 3; i++)
		for (policy = 0; policy < NR_SIGNAL_POLICIES; policy++) {
			struct signal_result a, b;
			double apart = policy < SIGNAL_DECOUPLED || policy == SIGNAL_IMM
					       ? 0.01
					       : 0.15; /* groups may overlap in the engine */

			small_job(&job);
			job.watch = false;
			job.network.far.jitter_ns = 0; /* draws come in another order */
			job.bytes = bytes[i];
			job.policy = (enum signal_policy)policy;
			a = simulate(signal_simulate_engine, &job);
			b = simulate(signal_simulate_steps, &job);
			if (a.time_us > b.time_us * (1 + apart) ||
				a.time_us < b.time_us * (1 - apart))
				fail_msg("%s, %u bytes: %g us through the engine, %g by hand",
					signal_policy_name(job.policy), (unsigned int)job.bytes,
					a.time_us, b.time_us);
			assert_true(a.drains == b.drains);
		}
}

/* Closed forms for one transfer: what the model says, added up. */
static void test_closed_forms(void **state)
{
	struct signal_result result;
	struct signal_job job;
	const struct sim_nic *nic = &job.network.nic;
	double put, round;

	(void)state;
	signal_job_init(&job);
	job.concurrency = 1;
	job.one_sender = true;
	job.spread_all = false;
	job.iters = 1;
	job.bytes = 25000;
	job.network.far.jitter_ns = 0;
	put = (double)nic->post_ns * 1e-3 + 1;
	round = (double)(2 * job.network.far.latency_ns + nic->completion_ns) * 1e-3;
	job.policy = SIGNAL_PUT_ONLY;
	result = simulate(signal_simulate_engine, &job);
	assert_true(result.time_us > put + round - 0.01 && result.time_us < put + round + 0.01);
	job.policy = SIGNAL_COUPLED;
	result = simulate(signal_simulate_engine, &job);
	put += (double)(nic->inline_post_ns + job.drain_ns) * 1e-3;
	assert_true(
		result.time_us > put + 2 * round - 0.01 && result.time_us < put + 2 * round + 0.01);
}

/* A layer ends no sooner than its compute or its transfers, and no later than one behind the other;
 * and where nobody waits for a tile, when the first one has come and all are computed. */
static void test_compute(void **state)
{
	static const uint64_t compute_ns[] = {1000, 100000, 50000000};
	struct signal_result result, first;
	struct signal_job job;

	(void)state;
	for (int policy = 0; policy < NR_SIGNAL_POLICIES; policy++) {
		signal_job_init(&job);
		job.nr_ranks = 12;
		job.concurrency = 24;
		job.iters = 1;
		job.policy = (enum signal_policy)policy;
		for (int i = 0; i < 3; i++) {
			double us = (double)compute_ns[i] * 1e-3;

			job.compute_ns = compute_ns[i];
			result = simulate(signal_simulate_engine, &job);
			if (policy == SIGNAL_PUT_ONLY) {
				assert_true(result.layer_us == 0);
				continue;
			}
			assert_true(result.layer_us >= result.time_us);
			assert_true(result.layer_us >= us * 0.999); /* tiles take whole ns */
			assert_true(result.layer_us <= result.time_us + us);
		}
	}
	job.policy = SIGNAL_IMM;
	first = simulate(signal_simulate_engine, &job);
	job.compute_ns *= 2;
	result = simulate(signal_simulate_engine, &job);
	assert_true(result.layer_us - first.layer_us > 49999 &&
		    result.layer_us - first.layer_us < 50001);
	assert_true(result.time_us == first.time_us);
}

static void test_repeats(void **state)
{
	struct signal_job job;
	struct signal_result a, b;

	(void)state;
	small_job(&job);
	foul_weather(&job.network, 5);
	job.policy = SIGNAL_PERSEUS;
	job.zipf = 1;
	a = simulate(signal_simulate_engine, &job);
	b = simulate(signal_simulate_engine, &job);
	assert_true(a.trace == b.trace && a.time_us == b.time_us);
	job.seed++;
	b = simulate(signal_simulate_engine, &job);
	assert_true(a.trace != b.trace);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_never_early),
		cmocka_unit_test(test_early_is_noticed),
		cmocka_unit_test(test_agrees_with_steps),
		cmocka_unit_test(test_closed_forms),
		cmocka_unit_test(test_compute),
		cmocka_unit_test(test_repeats),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
