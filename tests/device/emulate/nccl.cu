/* SPDX-License-Identifier: Apache-2.0 */
/* As much of NCCL as `tern bench --against nccl` calls, for emulated GPUs: messages go through
 * memory that all ranks share, chunk by chunk, by a kernel for each group of sends and receives.
 * TERN_EMULATED_NCCL=flip: a bit of a long message is wrong; =stall: rank 1 sends nothing. */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "cuda_runtime.h"

#define MOST_RANKS 8
#define MOST_OPS (2 * MOST_RANKS)
#define CHUNK_BYTES 4096
#define JOIN_SECONDS 20

extern "C" [[noreturn]] void emulated_die(const char *format, ...)
	__attribute__((format(printf, 1, 2)));

enum result {
	SUCCESS = 0,
	SYSTEM_ERROR = 2,
	INVALID_ARGUMENT = 4
};

struct unique_id {
	char bytes[128];
};

/* From one rank to another. Whoever sends fills data while nr_put is nr_taken; whoever receives
 * empties it while they differ. */
struct box {
	uint64_t nr_put, nr_taken, message_bytes, bytes;
	char data[CHUNK_BYTES];
};

struct shared {
	uint32_t nr_joined;
	struct box boxes[MOST_RANKS][MOST_RANKS];
};

struct comm {
	struct shared *shared;
	uint32_t rank, nr_ranks;
	bool aborted, flips, stalls;
};

struct op {
	struct comm *comm;
	bool sends, ended;
	uint32_t peer;
	char *at;
	uint64_t bytes, done;
};

struct group {
	uint32_t nr;
	struct op ops[MOST_OPS];
};

/* ---- the kernel ------------------------------------------------------------------------------ */

/* nr_taken's release orders what was read before what is written here; nr_put's release, the chunk
 * before its announcement. */
static bool put_chunk(struct op *op)
{
	struct box *box = &op->comm->shared->boxes[op->comm->rank][op->peer];
	uint64_t bytes = op->bytes - op->done < CHUNK_BYTES ? op->bytes - op->done : CHUNK_BYTES;

	if (__atomic_load_n(&box->nr_taken, __ATOMIC_ACQUIRE) != box->nr_put || op->comm->stalls)
		return false;
	memcpy(box->data, op->at + op->done, bytes);
	if (op->comm->flips && op->bytes > 64)
		box->data[bytes / 2] ^= 1;
	box->message_bytes = op->bytes;
	box->bytes = bytes;
	op->done += bytes;
	op->ended = op->done == op->bytes;
	__atomic_store_n(&box->nr_put, box->nr_put + 1, __ATOMIC_RELEASE);
	return true;
}

static bool take_chunk(struct op *op)
{
	struct box *box = &op->comm->shared->boxes[op->peer][op->comm->rank];

	if (__atomic_load_n(&box->nr_put, __ATOMIC_ACQUIRE) == box->nr_taken)
		return false;
	if (box->message_bytes != op->bytes)
		emulated_die("rank %u sends %llu bytes, of which rank %u receives %llu", op->peer,
			(unsigned long long)box->message_bytes, op->comm->rank,
			(unsigned long long)op->bytes);
	memcpy(op->at + op->done, box->data, box->bytes);
	op->done += box->bytes;
	op->ended = op->done == op->bytes;
	__atomic_store_n(&box->nr_taken, box->nr_taken + 1, __ATOMIC_RELEASE);
	return true;
}

/* One lane; messages of a pair go one after the other. */
static void move(struct group g)
{
	uint32_t nr_ended = 0;

	while (nr_ended < g.nr && !__atomic_load_n(&g.ops[0].comm->aborted, __ATOMIC_RELAXED)) {
		bool moved = false;

		for (uint32_t i = 0; i < g.nr; i++) {
			struct op *op = &g.ops[i];

			if (op->ended || !(op->sends ? put_chunk(op) : take_chunk(op)))
				continue;
			moved = true;
			nr_ended += op->ended;
		}
		if (moved)
			emulated_moves();
		emulated_yield();
	}
}

/* ---- groups ---------------------------------------------------------------------------------- */

static thread_local struct group open_group;
static thread_local uint32_t depth;
static thread_local cudaStream_t group_stream;

static int flush(void)
{
	cudaLaunchConfig_t config = {};
	cudaError_t rc = cudaSuccess;

	config.gridDim = dim3(1);
	config.blockDim = dim3(1);
	config.stream = group_stream;
	if (open_group.nr)
		rc = cudaLaunchKernelEx(&config, move, open_group);
	open_group.nr = 0;
	return rc ? SYSTEM_ERROR : SUCCESS;
}

static int add(struct comm *comm, bool sends, const void *at, size_t bytes, int type, int peer,
	cudaStream_t stream)
{
	if (type != 0 || peer < 0 || (uint32_t)peer >= comm->nr_ranks ||
		open_group.nr == MOST_OPS || (open_group.nr && stream != group_stream))
		return INVALID_ARGUMENT;
	group_stream = stream;
	open_group.ops[open_group.nr++] = {
		comm, sends, false, (uint32_t)peer, (char *)at, bytes, 0};
	return depth ? SUCCESS : flush();
}

#pragma GCC visibility push(default)
extern "C" {
int ncclGroupStart(void)
{
	depth++;
	return SUCCESS;
}

int ncclGroupEnd(void)
{
	if (!depth)
		return INVALID_ARGUMENT;
	return --depth ? SUCCESS : flush();
}

int ncclSend(
	const void *from, size_t count, int type, int peer, struct comm *comm, cudaStream_t stream)
{
	return add(comm, true, from, count, type, peer, stream);
}

int ncclRecv(void *to, size_t count, int type, int peer, struct comm *comm, cudaStream_t stream)
{
	return add(comm, false, to, count, type, peer, stream);
}

/* ---- life ------------------------------------------------------------------------------------ */

int ncclGetVersion(int *version)
{
	*version = 0;
	return SUCCESS;
}

const char *ncclGetErrorString(int rc)
{
	return rc == SUCCESS            ? "no error"
	       : rc == INVALID_ARGUMENT ? "invalid argument"
					: "system error";
}

int ncclGetUniqueId(struct unique_id *id)
{
	int fd = memfd_create("emulated-nccl", MFD_CLOEXEC); /* for as long as this process is */

	memset(id, 0, sizeof(*id));
	if (fd < 0 || ftruncate(fd, sizeof(struct shared)))
		return SYSTEM_ERROR;
	snprintf(id->bytes, sizeof(id->bytes), "/proc/%d/fd/%d", (int)getpid(), fd);
	return SUCCESS;
}

static bool join(struct comm *comm)
{
	time_t end = time(NULL) + JOIN_SECONDS;

	__atomic_add_fetch(&comm->shared->nr_joined, 1, __ATOMIC_ACQ_REL);
	while (__atomic_load_n(&comm->shared->nr_joined, __ATOMIC_ACQUIRE) < comm->nr_ranks) {
		if (time(NULL) > end)
			return false;
		sched_yield();
	}
	return true;
}

int ncclCommInitRank(struct comm **out, int nr_ranks, struct unique_id id, int rank)
{
	struct comm *comm = (struct comm *)calloc(1, sizeof(*comm));
	const char *fault = getenv("TERN_EMULATED_NCCL") ? getenv("TERN_EMULATED_NCCL") : "";
	int fd = open(id.bytes, O_RDWR | O_CLOEXEC);
	void *memory = fd < 0 ? MAP_FAILED
			      : mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE,
					MAP_SHARED, fd, 0);

	if (fd >= 0)
		close(fd);
	if (!comm || memory == MAP_FAILED || nr_ranks > MOST_RANKS || rank >= nr_ranks) {
		free(comm);
		return SYSTEM_ERROR;
	}
	comm->shared = (struct shared *)memory;
	comm->rank = (uint32_t)rank;
	comm->nr_ranks = (uint32_t)nr_ranks;
	comm->flips = !strcmp(fault, "flip");
	comm->stalls = !strcmp(fault, "stall") && rank == 1;
	*out = comm;
	return join(comm) ? SUCCESS : SYSTEM_ERROR;
}

int ncclCommDestroy(struct comm *comm)
{
	cudaDeviceSynchronize();
	munmap(comm->shared, sizeof(*comm->shared));
	free(comm);
	return SUCCESS;
}

int ncclCommAbort(struct comm *comm)
{
	__atomic_store_n(&comm->aborted, true, __ATOMIC_RELAXED);
	return ncclCommDestroy(comm);
}
}
#pragma GCC visibility pop
