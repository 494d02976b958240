/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/host/awake.h"

#include "base/environment.h"

#define CORES_A_RANK 2

/* Launchers bind ranks to cores of their own, or to none; both are seen. */
bool cores_suffice(const struct core_share *shares, uint32_t nr_ranks, uint32_t rank)
{
	int nr_cores = CPU_COUNT(&shares[rank].cores), nr_sharing = 0;

	for (uint32_t r = 0; r < nr_ranks; r++) {
		cpu_set_t both;

		CPU_AND(&both, &shares[rank].cores, &shares[r].cores);
		nr_sharing += r == rank || (shares[r].here && CPU_COUNT(&both));
	}
	return nr_cores >= CORES_A_RANK * nr_sharing;
}

int proxy_awake(
	const struct core_share *shares, uint32_t nr_ranks, uint32_t rank, bool *stays_awake)
{
	int wanted = cores_suffice(shares, nr_ranks, rank),
	    rc = environment_number("TERN_PROXY_AWAKE", 0, 1, &wanted);

	*stays_awake = wanted;
	return rc;
}
