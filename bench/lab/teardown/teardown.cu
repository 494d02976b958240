/* SPDX-License-Identifier: Apache-2.0 */
/* What calls of the driver take on those that live while it takes down the context of a process
 * that was killed. Four processes, two a GPU, which map each other's windows as exchanges do. One
 * is killed; when its pipe hangs up the others, or some of them, make calls.
 *
 *   tern-lab-teardown [REPEATS [MIB [FIRST]]]
 *                                  3 of each, windows of 64 MiB, from the first of acts[] on
 */
#include <cudaTypedefs.h>
#include <cuda_runtime.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS 4
#define VICTIM 3
#define MOST 4096 /* calls of one rank that are kept */
#define LOOP_NS 150000000ull
#define SLOW_US 1000

enum call {
	CREATE,
	EXPORT,
	IMPORT,
	UNMAP,
	MAP,
	ACCESS,
	RELEASE,
	LAUNCH, /* a kernel, and its end */
	COPY,   /* 8 bytes from pinned memory, and its end */
	NR_CALLS
};

static const char *const names[NR_CALLS] = {"cuMemCreate", "export", "import", "cuMemUnmap",
	"cuMemMap", "cuMemSetAccess", "cuMemRelease", "launch, end", "copy, end"};

enum act {
	ALL_LOOP,   /* all three make all calls for 150 ms */
	AT_REST,    /* likewise, and nobody is killed */
	LAUNCHES,   /* all three launch and copy, and nothing else */
	FAR_ALONE,  /* one, on the GPU that the dead one did not use */
	NEAR_ALONE, /* the one that shared its GPU */
	CHANGE,     /* what a change of view does, once */
	PREPARED,   /* of that what is left if memory was made and passed before */
	CHANGE_AT_REST,
	LOOP_FROM_KILL, /* as the first, but that nobody waits for the pipe */
	LAUNCHES_FROM_KILL,
	CHANGE_FROM_KILL,
	NR_ACTS
};

static const char *const acts[NR_ACTS] = {"all calls, by three", "the same, nobody killed",
	"launches and copies alone", "all calls, by one on the other GPU",
	"all calls, by the one on its GPU", "a change", "a change, prepared",
	"a change, nobody killed", "all calls, by three, from the kill on",
	"launches and copies alone, from the kill on", "a change, from the kill on"};

struct timed {
	uint32_t call;
	float at_us, us; /* since the kill */
};

struct shared {
	volatile int nr_ready, nr_done;
	volatile uint64_t kill_ns;
	int nr[RANKS];
	struct timed calls[RANKS][MOST];
	float change_us[RANKS], hung_up_us[RANKS];
};

struct window {
	CUdeviceptr base;
	CUmemGenericAllocationHandle memory;
	int fd;
};

static struct shared *shared;
static size_t bytes;
static enum act act;
static unsigned turn; /* of the repeats: a change from the kill on begins 4 ms later each time */
static int me, sockets[RANKS][RANKS][2], pipes[RANKS][2];
static struct window own, others[RANKS];
static CUmemAllocationProp prop;
static uint64_t *pinned, *words;

static struct {
	PFN_cuMemAddressReserve_v10020 reserve;
	PFN_cuMemCreate_v10020 create;
	PFN_cuMemRelease_v10020 release;
	PFN_cuMemMap_v10020 map;
	PFN_cuMemUnmap_v10020 unmap;
	PFN_cuMemSetAccess_v10020 access;
	PFN_cuMemExportToShareableHandle_v10020 export_fd;
	PFN_cuMemImportFromShareableHandle_v10020 import_fd;
} driver;

static void must(int rc, const char *what)
{
	if (!rc)
		return;
	fprintf(stderr, "rank %d: %s: %d\n", me, what, rc);
	_exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void find(const char *name, void *function)
{
	enum cudaDriverEntryPointQueryResult found;

	must(cudaGetDriverEntryPointByVersion(
		     name, (void **)function, 10020, cudaEnableDefault, &found),
		name);
}

static __global__ void count(uint64_t *at)
{
	*at += 1;
}

/* ---- calls that are timed -------------------------------------------------------------------- */

static bool waits_for_pipe(void)
{
	return act != AT_REST && act != CHANGE_AT_REST && act < LOOP_FROM_KILL;
}

static bool is_change(enum act a)
{
	return a == CHANGE || a == PREPARED || a == CHANGE_AT_REST || a == CHANGE_FROM_KILL;
}

static void look_at_pipe(int wait_ms)
{
	struct pollfd p = {.fd = pipes[VICTIM][0], .events = POLLIN};

	if (!shared->hung_up_us[me] && poll(&p, 1, wait_ms) == 1)
		shared->hung_up_us[me] = (float)(now_ns() - shared->kill_ns) / 1e3f;
}

static void note(enum call call, uint64_t begun)
{
	struct timed *t = &shared->calls[me][shared->nr[me]];

	if (shared->nr[me] == MOST)
		return;
	t->call = call;
	t->at_us = (float)(begun - shared->kill_ns) / 1e3f;
	t->us = (float)(now_ns() - begun) / 1e3f;
	shared->nr[me]++;
}

#define TIMED(which, expression)                                                                   \
	do {                                                                                       \
		uint64_t begun = now_ns();                                                         \
		must((int)(expression), names[which]);                                             \
		note(which, begun);                                                                \
	} while (0)

static void grant(const struct window *w)
{
	CUmemAccessDesc access;
	int device;

	must(cudaGetDevice(&device), "cudaGetDevice");
	memset(&access, 0, sizeof(access));
	access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	access.location.id = device;
	access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	TIMED(ACCESS, driver.access(w->base, bytes, &access, 1));
}

static void put_in_place(struct window *w, CUmemGenericAllocationHandle memory)
{
	TIMED(UNMAP, driver.unmap(w->base, bytes));
	TIMED(MAP, driver.map(w->base, bytes, 0, memory, 0));
	grant(w);
}

static void launch(void)
{
	uint64_t begun = now_ns();

	count<<<1, 1>>>(words);
	must(cudaDeviceSynchronize(), "a kernel");
	note(LAUNCH, begun);
}

static void copy(void)
{
	uint64_t begun = now_ns();

	must(cudaMemcpyAsync(words + 8, pinned, 8, cudaMemcpyHostToDevice, 0), "a copy");
	must(cudaDeviceSynchronize(), "a copy");
	note(COPY, begun);
}

static void make(CUmemGenericAllocationHandle *memory, int *fd)
{
	TIMED(CREATE, driver.create(memory, bytes, &prop, 0));
	TIMED(EXPORT, driver.export_fd(fd, *memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

static void take(CUmemGenericAllocationHandle *memory, int fd)
{
	TIMED(IMPORT, driver.import_fd(memory, (void *)(uintptr_t)fd,
			      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
}

static void all_calls(void)
{
	CUmemGenericAllocationHandle memory, again;
	int fd;

	make(&memory, &fd);
	take(&again, fd);
	close(fd);
	put_in_place(&own, memory);
	TIMED(RELEASE, driver.release(memory));
	TIMED(RELEASE, driver.release(again));
	launch();
	copy();
}

/* Other memory in its own place, and in those of the two others; who passes it does not matter
 * here. */
static void change(bool prepared)
{
	CUmemGenericAllocationHandle memory[RANKS];
	uint64_t begun;
	int fd[RANKS], nr = 0;

	if (prepared)
		for (int i = 0; i < RANKS - 1; i++) {
			make(&memory[i], &fd[i]);
			close(fd[i]);
		}
	__sync_fetch_and_add(&shared->nr_ready, 1);
	while (!shared->kill_ns)
		;
	if (waits_for_pipe())
		look_at_pipe(-1);
	if (act == CHANGE_FROM_KILL)
		usleep(turn * 4000);
	shared->nr[me] = 0;
	begun = now_ns();
	for (int r = 0; r < RANKS; r++) {
		struct window *w = r == me ? &own : &others[r];

		if (r == VICTIM)
			continue;
		if (!prepared && r == me)
			make(&memory[nr], &fd[nr]);
		else if (!prepared)
			take(&memory[nr], w->fd);
		put_in_place(w, memory[nr]);
		if (!prepared)
			TIMED(RELEASE, driver.release(memory[nr]));
		nr++;
	}
	shared->change_us[me] = (float)(now_ns() - begun) / 1e3f;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static void send_fd(int s, int fd)
{
	char byte = 0, control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec iov = {&byte, 1};
	struct msghdr msg = {};
	struct cmsghdr *c;

	msg.msg_iov = &iov;
	msg.msg_iovlen = 1;
	msg.msg_control = control;
	msg.msg_controllen = sizeof(control);
	c = CMSG_FIRSTHDR(&msg);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	must(sendmsg(s, &msg, 0) != 1, "sendmsg");
}

static int receive_fd(int s)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = {&byte, 1};
	struct msghdr msg = {};
	int fd;

	msg.msg_iov = &iov;
	msg.msg_iovlen = 1;
	msg.msg_control = control;
	msg.msg_controllen = sizeof(control);
	must(recvmsg(s, &msg, 0) != 1, "recvmsg");
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fd));
	return fd;
}

static void open_windows(void)
{
	own.fd = -1;
	must(driver.reserve(&own.base, bytes, 0, 0, 0), "reserve");
	make(&own.memory, &own.fd);
	must(driver.map(own.base, bytes, 0, own.memory, 0), "map");
	grant(&own);
	for (int r = 0; r < RANKS; r++)
		if (r != me)
			send_fd(sockets[me][r][0], own.fd);
	for (int r = 0; r < RANKS; r++) {
		if (r == me)
			continue;
		others[r].fd = receive_fd(sockets[r][me][1]);
		take(&others[r].memory, others[r].fd);
		must(driver.reserve(&others[r].base, bytes, 0, 0, 0), "reserve");
		must(driver.map(others[r].base, bytes, 0, others[r].memory, 0), "map");
		grant(&others[r]);
	}
}

static void open_rank(void)
{
	void *more;
	int device = me / 2, nr = 0;

	must(cudaGetDeviceCount(&nr), "devices");
	must(cudaSetDevice(device % nr), "a device");
	find("cuMemAddressReserve", &driver.reserve);
	find("cuMemCreate", &driver.create);
	find("cuMemRelease", &driver.release);
	find("cuMemMap", &driver.map);
	find("cuMemUnmap", &driver.unmap);
	find("cuMemSetAccess", &driver.access);
	find("cuMemExportToShareableHandle", &driver.export_fd);
	find("cuMemImportFromShareableHandle", &driver.import_fd);
	must(cudaMalloc(&more, 1u << 28), "cudaMalloc");
	must(cudaMalloc(&words, 4096), "cudaMalloc");
	must(cudaMallocHost(&pinned, 4096), "cudaMallocHost");
	memset(&prop, 0, sizeof(prop));
	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop.location.id = device % nr;
	open_windows();
	launch();
	copy();
}

static bool takes_part(void)
{
	return act == FAR_ALONE ? me == 0 : act == NEAR_ALONE ? me == 2 : true;
}

static void live_on(void)
{
	uint64_t begun;

	all_calls();
	if (is_change(act)) {
		change(act == PREPARED);
		return;
	}
	__sync_fetch_and_add(&shared->nr_ready, 1);
	while (!shared->kill_ns)
		;
	if (waits_for_pipe())
		look_at_pipe(-1);
	shared->nr[me] = 0;
	begun = now_ns();
	while (takes_part() && now_ns() - begun < LOOP_NS) {
		look_at_pipe(0);
		if (act != LAUNCHES && act != LAUNCHES_FROM_KILL)
			all_calls();
		launch();
		copy();
	}
}

static void be_rank(int r)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	me = r;
	for (int i = 0; i < RANKS; i++)
		close(pipes[i][i == r ? 0 : 1]);
	open_rank();
	if (r == VICTIM) {
		__sync_fetch_and_add(&shared->nr_ready, 1);
		for (;;)
			launch();
	}
	live_on();
	__sync_fetch_and_add(&shared->nr_done, 1);
	while (shared->nr_done < RANKS - 1)
		usleep(1000);
	_exit(0);
}

/* ---- telling --------------------------------------------------------------------------------- */

static int in_order(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

static void tell_rank(int r)
{
	static float us[MOST];
	float last_slow = 0, first = 0;

	for (int i = 0; i < shared->nr[r]; i++) {
		const struct timed *t = &shared->calls[r][i];

		first = i ? first : t->at_us;
		if (t->us >= SLOW_US)
			last_slow = t->at_us + t->us;
	}
	printf("  rank %d on GPU %d (its): %s; %d calls from %.2f ms on; the last slow one ended "
	       "at "
	       "%.1f ms; the pipe hung up at %.1f\n",
		r, r / 2, r / 2 == VICTIM / 2 ? "yes" : "no", shared->nr[r], first / 1e3,
		last_slow / 1e3, shared->hung_up_us[r] / 1e3);
	for (int i = 0; i < shared->nr[r]; i++)
		if (shared->calls[r][i].us >= SLOW_US)
			printf("    slow: %s, from %.1f ms, for %.1f ms\n",
				names[shared->calls[r][i].call], shared->calls[r][i].at_us / 1e3,
				shared->calls[r][i].us / 1e3);
	for (int c = 0; c < NR_CALLS; c++) {
		float sum = 0;
		int nr = 0;

		for (int i = 0; i < shared->nr[r]; i++)
			if (shared->calls[r][i].call == (uint32_t)c)
				us[nr++] = shared->calls[r][i].us;
		if (!nr)
			continue;
		qsort(us, (size_t)nr, sizeof(*us), in_order);
		for (int i = 0; i < nr; i++)
			sum += us[i];
		printf("    %-16s n %4d  p50 %8.1f  p90 %8.1f  max %9.1f  sum %9.1f us\n", names[c],
			nr, us[nr / 2], us[nr * 9 / 10], us[nr - 1], sum);
	}
}

static void play(int repeat)
{
	pid_t pids[RANKS];

	memset(shared, 0, sizeof(*shared));
	for (int r = 0; r < RANKS; r++) {
		must(pipe(pipes[r]), "pipe");
		for (int s = 0; s < RANKS; s++)
			must(socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets[r][s]), "socketpair");
	}
	for (int r = 0; r < RANKS; r++)
		if (!(pids[r] = fork()))
			be_rank(r);
	for (int r = 0; r < RANKS; r++) {
		close(pipes[r][0]);
		close(pipes[r][1]);
		for (int s = 0; s < RANKS; s++) {
			close(sockets[r][s][0]);
			close(sockets[r][s][1]);
		}
	}
	while (shared->nr_ready < RANKS)
		usleep(1000);
	usleep(20000);
	shared->kill_ns = now_ns();
	if (act != AT_REST && act != CHANGE_AT_REST)
		kill(pids[VICTIM], SIGKILL);
	for (int r = 0; r < RANKS; r++)
		if (r != VICTIM)
			waitpid(pids[r], NULL, 0);
	kill(pids[VICTIM], SIGKILL);
	waitpid(pids[VICTIM], NULL, 0);
	printf("%s, %d:", acts[act], repeat);
	if (is_change(act))
		printf(" %.1f, %.1f and %.1f ms", shared->change_us[0] / 1e3,
			shared->change_us[1] / 1e3, shared->change_us[2] / 1e3);
	printf("\n");
	for (int r = 0; r < RANKS; r++)
		if (r != VICTIM && shared->nr[r])
			tell_rank(r);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	int repeats = argc > 1 ? atoi(argv[1]) : 3;

	bytes = (size_t)(argc > 2 ? atoi(argv[2]) : 64) << 20;
	shared = (struct shared *)mmap(
		NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int a = argc > 3 ? atoi(argv[3]) : 0; a < NR_ACTS; a++)
		for (int i = 0; i < repeats; i++) {
			act = (enum act)a;
			turn = (unsigned)i;
			play(i + 1);
		}
	return 0;
}
