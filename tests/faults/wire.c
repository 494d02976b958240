/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/faults/wire.h"

#include <stdlib.h>
#include <unistd.h>

bool wire_is_there(void)
{
	return !access("/sys/class/infiniband/rxe1", F_OK) &&
	       !access("/sys/class/infiniband/rxe2", F_OK);
}

int wire_pull(void)
{
	return system("scripts/vm/wire.sh down");
}

int wire_mend(void)
{
	return system("scripts/vm/wire.sh up");
}
