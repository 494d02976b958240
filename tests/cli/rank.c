/* SPDX-License-Identifier: Apache-2.0 */
/* A rank for tests of the launcher. rank gather N: N gatherings, checked. rank miss R: rank R ends
 * without gathering. rank kill R: rank R kills itself while the others wait. Exit code: 0, or 3
 * with tern_last_error on stderr. */
#include "tern.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int gather(struct tern_boot *boot, int value)
{
	int mine = boot->rank * 1000 + value;
	int *all = calloc((size_t)boot->nr_ranks, sizeof(*all));
	int rc = boot->allgather(boot->ctx, &mine, all, sizeof(mine));

	for (int r = 0; r < boot->nr_ranks && !rc; r++)
		if (all[r] != r * 1000 + value)
			rc = -100;
	free(all);
	return rc;
}

static int run(struct tern_boot *boot, const char *what, int number)
{
	int nr_rounds = strcmp(what, "gather") ? 1 : number;
	int rc = 0;

	if (!strcmp(what, "miss") && boot->rank == number)
		return 0;
	if (!strcmp(what, "kill") && boot->rank == number)
		raise(SIGKILL);
	for (int i = 0; i < nr_rounds && !rc; i++)
		rc = gather(boot, i);
	return rc;
}

int main(int argc, char **argv)
{
	struct tern_boot boot;
	int rc = argc == 3 ? tern_boot_env(&boot) : TERN_ERR_INVALID;

	if (!rc) {
		rc = run(&boot, argv[1], atoi(argv[2]));
		if (rc)
			fprintf(stderr, "%s\n", tern_last_error());
		else if (boot.rank == 0)
			printf("%d ranks\n", boot.nr_ranks);
		if (boot.close)
			boot.close(boot.ctx);
	} else {
		fprintf(stderr, "%s\n", tern_last_error());
	}
	return rc ? 3 : 0;
}
