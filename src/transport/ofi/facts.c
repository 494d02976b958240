/* SPDX-License-Identifier: Apache-2.0 */
/* Providers, as they were found to be. A capability stands here when tests/transport has seen it
 * hold, or, for hardware that was not at hand, when the provider's own documentation promises it:
 * those have tested = false. What a provider claims of itself is not enough: several claim
 * automatic progress or an order of writes that they do not have. docs/transports.md has the table
 * with reasons. */
#include "transport/ofi/ofi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define OFI_LIBRARY "libfabric.so.1"

static const struct ofi_facts providers[] = {
	/* A lost connection is made again and again, and what was under way on it is forgotten. */
	{.provider = "tcp;ofi_rxm",
		.caps = TRANSPORT_ORDERED | TRANSPORT_TARGET_POLLS | TRANSPORT_SHUTS_OUT,
		.reconnects = true,
		.by_interface = true,
		.tested = true},
	{.provider = "tcp",
		.caps = TRANSPORT_ORDERED | TRANSPORT_TARGET_POLLS,
		.by_interface = true},
	/* A delivery-complete write without bytes never completes. */
	{.provider = "shm", .caps = TRANSPORT_TARGET_POLLS, .least_bytes = 1, .tested = true},
	{.provider = "udp;ofi_rxd",
		.caps = TRANSPORT_TARGET_POLLS,
		.by_interface = true,
		.tested = true},
	{.provider = "sockets",
		.caps = TRANSPORT_FENCE,
		.ask_caps = FI_FENCE,
		.by_interface = true,
		.tested = true},
	{.provider = "net", .caps = TRANSPORT_TARGET_POLLS, .by_interface = true},
	/* A queue pair of the RC kind keeps order; ofi_rxm needs the target to answer connection
	   requests. */
	{.provider = "verbs;ofi_rxm",
		.caps = TRANSPORT_ORDERED | TRANSPORT_TARGET_POLLS,
		.peer_to_peer = true,
		.by_interface = true},
	/* Datagrams in any order; parts of the protocol run in the target's polling. */
	{.provider = "efa", .caps = TRANSPORT_TARGET_POLLS, .peer_to_peer = true},
	/* The NIC orders behind a fence what it does not order by itself. */
	{.provider = "cxi",
		.caps = TRANSPORT_FENCE | TRANSPORT_TARGET_POLLS,
		.ask_caps = FI_FENCE,
		.peer_to_peer = true},
};

/* The least that any provider has. */
static const struct ofi_facts unknown = {
	.provider = "", .caps = TRANSPORT_TARGET_POLLS, .by_interface = true};

const struct ofi_facts *ofi_facts(const char *provider)
{
	for (size_t i = 0; i < sizeof(providers) / sizeof(providers[0]); i++)
		if (!strcmp(providers[i].provider, provider))
			return &providers[i];
	return &unknown;
}

static int load_symbol(void *library, const char *name, void *function)
{
	void *symbol = dlsym(library, name);

	if (!symbol)
		return fail(TERN_ERR_UNSUPPORTED, "%s has no %s", OFI_LIBRARY, name);
	memcpy(function, &symbol, sizeof(symbol));
	return 0;
}

static void set_environment(void)
{
	setenv("FI_AV_REMOVE_CLEANUP", "1", 0);
	/* Of 16 KB ofi_rxm's buffers take 60 MB more a process, which its start writes through.
	   A longer message is fetched by its receiver. */
	setenv("FI_OFI_RXM_BUFFER_SIZE", "4096", 0);
}

/* Never unloaded: providers leave threads and exit handlers behind. */
int ofi_load(struct ofi_library *l)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	void *library;
	int rc;

	/* It is read when the library is loaded, and has no other place: ofi_disconnect. Once,
	   before the first thread is in the library, which reads its environment at any time. */
	pthread_once(&once, set_environment);
	library = dlopen(OFI_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return fail(TERN_ERR_UNSUPPORTED, "libfabric cannot be loaded: %s", dlerror());
	rc = load_symbol(library, "fi_getinfo", &l->getinfo);
	if (!rc)
		rc = load_symbol(library, "fi_freeinfo", &l->freeinfo);
	if (!rc)
		rc = load_symbol(library, "fi_dupinfo", &l->dupinfo);
	if (!rc)
		rc = load_symbol(library, "fi_fabric", &l->fabric);
	if (!rc)
		rc = load_symbol(library, "fi_strerror", &l->strerror);
	if (!rc)
		rc = load_symbol(library, "fi_version", &l->version);
	if (!rc && FI_VERSION_LT(l->version(), FI_VERSION(1, 17)))
		rc = fail(TERN_ERR_UNSUPPORTED, "libfabric is %u.%u, Tern needs 1.17 or newer",
			FI_MAJOR(l->version()), FI_MINOR(l->version()));
	return rc;
}
