/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/near.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int near_find(const char *link, struct pci_place *place)
{
	char path[PATH_MAX], numa[PATH_MAX + 16];
	FILE *file;

	*place = (struct pci_place){.numa_node = -1};
	if (!realpath(link, path) || strlen(path) >= sizeof(place->path))
		return -1;
	memcpy(place->path, path, strlen(path) + 1);
	snprintf(numa, sizeof(numa), "%s/numa_node", path);
	file = fopen(numa, "re");
	if (file && fscanf(file, "%d", &place->numa_node) != 1)
		place->numa_node = -1;
	if (file)
		fclose(file);
	return 0;
}

/* Devices above both, the host bridge among them. A root port has one link, so two devices below it
 * are behind a switch. */
static int nr_above_both(const char *a, const char *b)
{
	int nr = 0;

	a = strstr(a, "/pci");
	b = strstr(b, "/pci");
	while (a && b) {
		size_t length = 1 + strcspn(a + 1, "/");

		if (length != 1 + strcspn(b + 1, "/") || memcmp(a, b, length))
			return nr;
		nr++;
		a = a[length] ? a + length : NULL;
		b = b[length] ? b + length : NULL;
	}
	return nr;
}

enum nearness near_each_other(const struct pci_place *a, const struct pci_place *b)
{
	int nr = nr_above_both(a->path, b->path);

	if (nr)
		return nr > 1 ? NEAR_SWITCH : NEAR_BRIDGE;
	if (a->numa_node < 0 || b->numa_node < 0)
		return NEAR_UNKNOWN;
	return a->numa_node == b->numa_node ? NEAR_NODE : FAR_NODE;
}

const char *near_text(enum nearness how)
{
	static const char *const texts[] = {[NEAR_SWITCH] = "behind one PCIe switch with it",
		[NEAR_BRIDGE] = "under one host bridge with it",
		[NEAR_NODE] = "on its NUMA node",
		[FAR_NODE] = "on another NUMA node",
		[NEAR_UNKNOWN] = "where, nobody says"};

	return texts[how];
}
