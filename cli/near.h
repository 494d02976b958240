/* SPDX-License-Identifier: Apache-2.0 */
/* How far a PCI device is from another: what lies between a GPU and a NIC. */
#ifndef TERN_CLI_NEAR_H
#define TERN_CLI_NEAR_H

enum nearness {
	NEAR_SWITCH, /* behind one PCIe switch: bytes between them do not pass the processor */
	NEAR_BRIDGE, /* under one host bridge of the processor */
	NEAR_NODE,   /* on one NUMA node */
	FAR_NODE,    /* on another: between processors */
	NEAR_UNKNOWN
};

/* Where sysfs says that a device is, "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0", and its
 * NUMA node; -1: unknown. */
struct pci_place {
	char path[256];
	int numa_node;
};

/* link: of a device in sysfs. 0, or -1: there is no such device. */
int near_find(const char *link, struct pci_place *place);
enum nearness near_each_other(const struct pci_place *a, const struct pci_place *b);
const char *near_text(enum nearness how);

#endif
