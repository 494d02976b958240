/* SPDX-License-Identifier: Apache-2.0 */
/* What lies between a GPU and a NIC, from where sysfs says that they are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/stat.h>
#include <stdio.h>
#include <cmocka.h>

#include "cli/near.h"

#define ROOT "/sys/devices/"
static const struct pci_place gpu = {
	ROOT "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0", 0};

static enum nearness nic(const char *path, int numa_node)
{
	struct pci_place place = {.numa_node = numa_node};

	snprintf(place.path, sizeof(place.path), "%s", path);
	assert_int_equal(near_each_other(&gpu, &place), near_each_other(&place, &gpu));
	return near_each_other(&gpu, &place);
}

static void how_near(void **state)
{
	(void)state;
	assert_int_equal(
		nic(ROOT "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:1a:00.0", 0),
		NEAR_SWITCH);
	assert_int_equal(nic(ROOT "pci0000:15/0000:15:01.0/0000:16:00.1", 0), NEAR_SWITCH);
	assert_int_equal(nic(ROOT "pci0000:15/0000:15:02.0/0000:1c:00.0", 0), NEAR_BRIDGE);
	assert_int_equal(nic(ROOT "pci0000:15/0000:15:01.1/0000:16:00.0", 0), NEAR_BRIDGE);
	assert_int_equal(nic(ROOT "pci0000:37/0000:37:01.0/0000:38:00.0", 0), NEAR_NODE);
	assert_int_equal(nic(ROOT "pci0000:1/0000:15:01.0/0000:16:00.0", 1), FAR_NODE);
	assert_int_equal(nic(ROOT "pci0001:15/0000:15:01.0/0000:16:00.0", -1), NEAR_UNKNOWN);
	assert_int_equal(nic(ROOT "virtual/net/rxe0", 0), NEAR_NODE);
}

/* A link into a tree such as sysfs has. */
static void found(void **state)
{
	char root[] = "/tmp/tern-near-XXXXXX", path[256], link[256];
	struct pci_place place;
	FILE *file;

	(void)state;
	assert_non_null(mkdtemp(root));
	snprintf(path, sizeof(path), "%s/pci0000:15", root);
	assert_int_equal(mkdir(path, 0700), 0);
	snprintf(link, sizeof(link), "%s/device", root);
	assert_int_equal(symlink("pci0000:15", link), 0);
	assert_int_equal(near_find(link, &place), 0);
	assert_non_null(strstr(place.path, "/pci0000:15"));
	assert_int_equal(place.numa_node, -1);
	snprintf(path, sizeof(path), "%s/pci0000:15/numa_node", root);
	file = fopen(path, "we");
	assert_non_null(file);
	fputs("3\n", file);
	fclose(file);
	assert_int_equal(near_find(link, &place), 0);
	assert_int_equal(place.numa_node, 3);
	unlink(path);
	unlink(link);
	assert_int_equal(near_find(link, &place), -1);
	*strrchr(path, '/') = 0;
	rmdir(path);
	rmdir(root);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(how_near),
		cmocka_unit_test(found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
