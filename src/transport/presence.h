/* SPDX-License-Identifier: Apache-2.0 */
/* What networks this machine has, for people and for choosing: plain facts, so that nobody who asks
 * needs a library's headers. */
#ifndef TERN_TRANSPORT_PRESENCE_H
#define TERN_TRANSPORT_PRESENCE_H

#include <stddef.h>
#include <stdint.h>

/* A port of an RDMA device. */
struct verbs_facts {
	char device[64];
	char interface[16]; /* of the network, on RoCE; else "" */
	char address[48];   /* of the GID that would be used */
	char gid_type[16];
	char reason[120]; /* why it cannot be used; "": it can */
	const char *link; /* "Ethernet" or "InfiniBand" */
	uint32_t port, gid_index, mtu_bytes, message_bytes;
	int numa_node; /* -1: unknown */
};

/* Calls back for each port. Negative: there is none, or no library; the cause is in
 * tern_last_error(). */
int verbs_list(void (*each)(void *ctx, const struct verbs_facts *facts), void *ctx);

/* 0: `device` (NULL: some device) can be used now. Negative: not, and the cause is in
 * tern_last_error(). facts may be NULL. */
int verbs_probe(const char *device, struct verbs_facts *facts);

/* What all ranks have in common to which shm can lead: this machine, in words. */
int shm_probe(char *machine, size_t bytes);

#define OFI_DEFAULT_PROVIDER "tcp;ofi_rxm"

/* Calls back for each provider and domain that libfabric offers with reliable datagrams and
 * one-sided writes. */
int ofi_list(void (*each)(void *ctx, const char *provider, const char *domain), void *ctx);

#endif
