/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/command/nccl.h"
#include "base/error.h"

#include <dlfcn.h>
#include <stdlib.h>

#define NAME "libnccl.so.2"

static struct nccl nccl;

static const char *find_all(void *library)
{
	const struct {
		const char *name;
		void *to;
	} symbols[] = {{"ncclGetErrorString", &nccl.error_text}, {"ncclGetVersion", &nccl.version},
		{"ncclGetUniqueId", &nccl.unique_id}, {"ncclCommInitRank", &nccl.init_rank},
		{"ncclCommDestroy", &nccl.destroy}, {"ncclCommAbort", &nccl.abort},
		{"ncclGroupStart", &nccl.group_start}, {"ncclGroupEnd", &nccl.group_end},
		{"ncclSend", &nccl.send}, {"ncclRecv", &nccl.recv}};

	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		*(void **)symbols[i].to = dlsym(library, symbols[i].name);
		if (!*(void **)symbols[i].to)
			return symbols[i].name;
	}
	return NULL;
}

const struct nccl *nccl_load(void)
{
	const char *setting = getenv("TERN_NCCL_LIBRARY"),
		   *path = setting && *setting ? setting : NAME, *missing;
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		fail(TERN_ERR_UNSUPPORTED,
			"--against nccl needs NCCL (TERN_NCCL_LIBRARY, else " NAME "): %s",
			dlerror());
		return NULL;
	}
	missing = find_all(library);
	if (missing)
		fail(TERN_ERR_UNSUPPORTED,
			"--against nccl: %s has no %s; ncclSend and ncclRecv came with NCCL 2.7",
			path, missing);
	return missing ? NULL : &nccl;
}
