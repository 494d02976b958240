/* SPDX-License-Identifier: Apache-2.0 */
/* The transport between ranks of one machine: processes of one user, or threads of a process.
 *
 * A write copies its bytes straight to their place and then puts its immediate into the receiver's
 * mailbox. Registered memory is the caller's and may be of any kind, so another process cannot map
 * it: the kernel copies into it (process_vm_writev, one copy, no help from the target). Within a
 * process it is memcpy. When write returns the bytes have landed; so writes are ordered, a fence
 * costs nothing, every write may be inline, and the only queues are the immediates' and messages'
 * rings and the completions that nobody has polled yet.
 *
 * A peer's death is seen by its pidfd, its leaving by a word in its mailbox; both are looked at
 * every millisecond of polling, after its connection has been emptied. The kernel's copy names its
 * target by pid: a pid is reused only after its parent has reaped it and all others have been used,
 * the mailbox's nonce is checked on connecting and the pidfd on polling.
 *
 * process_vm_writev needs the right to trace the target: the same user, and where Yama's
 * ptrace_scope is 1 or more also CAP_SYS_PTRACE (or that the target allows it). connect tries it
 * and says so. */
#include "transport/shm/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/error.h"
#include "transport/presence.h"

struct shm_address {
	uint8_t machine[16];
	uint64_t pid_namespace;
	uint64_t nonce[2];
	uint64_t probe_base; /* of the mailbox, in its owner's address space */
	int32_t pid;
	int32_t fd;
};

/* ---- opening and closing --------------------------------------------------------------------- */

static uint32_t power_of_two(uint32_t least)
{
	uint32_t n = 64;

	while (n < least)
		n *= 2;
	return n;
}

static void shm_close(struct transport *transport)
{
	struct shm *s = shm_of(transport);

	if (s->mailbox) {
		for (uint32_t i = 0; i < MAILBOX_REGIONS; i++)
			region_announce(&s->mailbox->head->regions[i], 0);
		atomic_store_explicit(&s->mailbox->head->closed, 1, memory_order_release);
	}
	for (uint32_t p = 0; s->peers && s->lives && p < s->nr_peers; p++) {
		mailbox_release(s->peers[p].mailbox);
		if (s->lives[p].fd >= 0)
			close(s->lives[p].fd);
	}
	mailbox_release(s->mailbox);
	free(s->peers);
	free(s->lives);
	free(s->completions);
	free(s);
}

static int shm_fill(struct shm *s, const struct transport_options *options)
{
	struct mailbox_shape shape = {.nr_connections = options->nr_peers,
		.nr_immediates = power_of_two(options->depth),
		.message_bytes = options->message_bytes};

	s->nr_completions = shape.nr_immediates;
	s->peers = calloc(s->nr_peers, sizeof(*s->peers));
	s->lives = calloc(s->nr_peers, sizeof(*s->lives));
	s->completions = calloc(s->nr_completions, sizeof(*s->completions));
	if (!s->peers || !s->lives || !s->completions)
		return fail(TERN_ERR_NOMEM, "no memory for %u peers", s->nr_peers);
	for (uint32_t p = 0; p < s->nr_peers; p++)
		s->lives[p] = (struct pollfd){.fd = -1, .events = POLLIN};
	return mailbox_make(&shape, &s->mailbox);
}

static int shm_open_transport(const struct transport_options *options, struct transport **transport,
	struct transport_info *info)
{
	struct shm *s;
	int rc;

	if (!options->nr_peers || options->nr_peers > 1u << 16 ||
		options->self >= options->nr_peers || options->depth > 1u << 20 ||
		options->message_bytes > 1u << 24)
		return fail(TERN_ERR_INVALID,
			"rank %u of %u, %u writes at once, messages of %u bytes", options->self,
			options->nr_peers, options->depth, options->message_bytes);
	s = calloc(1, sizeof(*s));
	if (!s)
		return fail(TERN_ERR_NOMEM, "no memory for a transport");
	s->base.ops = &transport_shm;
	s->self = options->self;
	s->nr_peers = options->nr_peers;
	rc = shm_fill(s, options);
	if (rc) {
		shm_close(&s->base);
		return rc;
	}
	for (uint32_t p = 0; p < s->nr_peers; p++)
		s->peers[p].inbox = mailbox_connection(s->mailbox, p);
	*info = (struct transport_info){.name = "shm",
		.provider = "process_vm_writev",
		.caps = TRANSPORT_ORDERED | TRANSPORT_FENCE | TRANSPORT_SEES_DEATH,
		.depth = s->nr_completions,
		.inline_bytes = SHM_WRITE_MOST,
		.message_bytes = options->message_bytes,
		.write_bytes = SHM_WRITE_MOST};
	*transport = &s->base;
	return 0;
}

/* ---- addresses and connecting ---------------------------------------------------------------- */

static int this_machine(struct shm_address *a)
{
	char text[40] = "";
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || read(fd, text, sizeof(text) - 1) < 36 || stat("/proc/self/ns/pid", &st)) {
		int rc = fail_errno("telling this machine from others");

		if (fd >= 0)
			close(fd);
		return rc;
	}
	close(fd);
	a->pid_namespace = st.st_ino;
	for (int i = 0, at = 0; i < 16; i++, at += 2) {
		unsigned byte = 0;

		at += text[at] == '-';
		sscanf(text + at, "%2x", &byte);
		a->machine[i] = (uint8_t)byte;
	}
	return 0;
}

int shm_probe(char *machine, size_t bytes)
{
	struct shm_address mine;
	uint64_t halves[2];
	int rc = this_machine(&mine);

	if (rc)
		return rc;
	memcpy(halves, mine.machine, sizeof(halves));
	snprintf(machine, bytes, "machine %016llx%016llx:%llx", (unsigned long long)halves[0],
		(unsigned long long)halves[1], (unsigned long long)mine.pid_namespace);
	return 0;
}

static int shm_address(struct transport *transport, void *address, uint32_t *bytes)
{
	struct shm *s = shm_of(transport);
	struct shm_address mine = {
		.probe_base = (uintptr_t)s->mailbox->head, .pid = getpid(), .fd = s->mailbox->fd};
	int rc = this_machine(&mine);

	if (rc)
		return rc;
	if (*bytes < sizeof(mine))
		return fail(TERN_ERR_INVALID, "an address takes %zu bytes, not %u", sizeof(mine),
			*bytes);
	memcpy(mine.nonce, s->mailbox->nonce, sizeof(mine.nonce));
	memcpy(address, &mine, sizeof(mine));
	*bytes = sizeof(mine);
	return 0;
}

/* The copy that all writes will use, tried on the connection's probe. */
static int try_copy(struct shm *s, struct shm_peer *peer, const struct shm_address *a)
{
	uint64_t word = s->mailbox->nonce[0] | 1;
	uint64_t offset =
		(uint64_t)((uint8_t *)&peer->connection->probe - (uint8_t *)peer->mailbox->head);
	struct iovec from = {.iov_base = &word, .iov_len = sizeof(word)};
	struct iovec to = {
		.iov_base = (void *)(uintptr_t)(a->probe_base + offset), .iov_len = sizeof(word)};

	if (mailbox_here(peer->mailbox))
		return 0;
	if (process_vm_writev(a->pid, &from, 1, &to, 1, 0) != sizeof(word)) {
		int cause = errno, rc = fail_errno("copying into process %d", a->pid);

		return cause == EPERM || cause == ENOSYS
			       ? fail(TERN_ERR_UNSUPPORTED,
					 "%s: another user's, or "
					 "/proc/sys/kernel/yama/ptrace_scope forbids it, or a "
					 "container's filter does",
					 tern_last_error())
			       : rc;
	}
	if (atomic_load_explicit(&peer->connection->probe, memory_order_acquire) != word)
		return fail(TERN_ERR_PROTOCOL,
			"what was copied into process %d is not in its mailbox", a->pid);
	return 0;
}

static int attach_peer(struct shm *s, uint32_t p, const struct shm_address *a)
{
	struct shm_peer *peer = &s->peers[p];
	int rc = mailbox_find(a->pid, a->fd, a->nonce, &peer->mailbox);

	if (rc)
		return rc;
	if (peer->mailbox->shape.nr_connections <= s->self)
		return fail(TERN_ERR_MISMATCH, "peer %u knows %u ranks, this is rank %u", p,
			peer->mailbox->shape.nr_connections, s->self);
	if (atomic_load_explicit(&peer->mailbox->head->closed, memory_order_acquire))
		return fail(TERN_ERR_PEER_LEFT, "peer %u has closed its transport", p);
	peer->connection = mailbox_connection(peer->mailbox, s->self);
	peer->immediates_put = connection_observe(&peer->connection->immediates);
	peer->messages_put = connection_observe(&peer->connection->messages);
	return try_copy(s, peer, a);
}

static void drop_peer(struct shm *s, uint32_t p)
{
	struct shm_peer *peer = &s->peers[p];
	struct shm_peer none = {.inbox = peer->inbox, .messages_read = peer->messages_read};

	memcpy(none.text, peer->text, sizeof(none.text)); /* the engine may still be reading it */
	mailbox_release(peer->mailbox);
	if (s->lives[p].fd >= 0)
		close(s->lives[p].fd);
	s->lives[p].fd = -1;
	*peer = none;
}

/* The pidfd comes before the mailbox: if the pid has been reused in between, the nonce is wrong. */
static int shm_connect(struct transport *transport, uint32_t p, const void *address, uint32_t bytes)
{
	struct shm *s = shm_of(transport);
	struct shm_address mine, a;
	int rc = this_machine(&mine);

	if (rc)
		return rc;
	if (p >= s->nr_peers || bytes != sizeof(a))
		return fail(TERN_ERR_INVALID, "peer %u of %u, an address of %u bytes", p,
			s->nr_peers, bytes);
	if (s->peers[p].mailbox)
		return fail(TERN_ERR_STATE, "peer %u is connected", p);
	memcpy(&a, address, sizeof(a));
	if (memcmp(a.machine, mine.machine, sizeof(a.machine)) ||
		a.pid_namespace != mine.pid_namespace)
		return fail(TERN_ERR_UNSUPPORTED,
			"peer %u is on another machine, or in another pid namespace", p);
	if (a.pid != getpid()) {
		s->lives[p].fd = (int)syscall(SYS_pidfd_open, a.pid, 0);
		if (s->lives[p].fd < 0)
			return errno == ESRCH ? fail(TERN_ERR_PEER_DEAD,
							"peer %u, process %d, has ended", p, a.pid)
					      : fail_errno("pidfd_open");
	}
	rc = attach_peer(s, p, &a);
	if (rc)
		drop_peer(s, p);
	return rc;
}

/* What the peer has sent and nobody has read goes with it. */
static int shm_disconnect(struct transport *transport, uint32_t p)
{
	struct shm *s = shm_of(transport);
	struct connection *inbox;

	if (p >= s->nr_peers)
		return fail(TERN_ERR_INVALID, "peer %u of %u", p, s->nr_peers);
	inbox = s->peers[p].inbox;
	s->peers[p].messages_read = connection_observe(&inbox->messages);
	connection_retire(&inbox->messages, s->peers[p].messages_read);
	connection_retire(&inbox->immediates, connection_observe(&inbox->immediates));
	drop_peer(s, p);
	return 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int shm_reg(struct transport *transport, void *base, uint64_t bytes,
	struct transport_region **out, struct transport_key *key)
{
	struct shm *s = shm_of(transport);
	struct mailbox_region *entries = s->mailbox->head->regions;
	struct transport_region *region;
	uint32_t at = 0;

	while (at < MAILBOX_REGIONS && region_observe(&entries[at]))
		at++;
	if (at == MAILBOX_REGIONS)
		return fail(TERN_ERR_NOMEM,
			"%d regions are registered, that is all there is room for",
			MAILBOX_REGIONS);
	region = malloc(sizeof(*region));
	if (!region)
		return fail(TERN_ERR_NOMEM, "no memory for a region's record");
	*region = (struct transport_region){.base = base, .bytes = bytes, .at = at};
	entries[at].base = (uintptr_t)base;
	entries[at].bytes = bytes;
	*key = (struct transport_key){.bytes = bytes, .key = ++s->next_key * MAILBOX_REGIONS + at};
	region_announce(&entries[at], key->key);
	*out = region;
	return 0;
}

static void shm_dereg(struct transport *transport, struct transport_region *region)
{
	if (!region)
		return;
	region_announce(&shm_of(transport)->mailbox->head->regions[region->at], 0);
	free(region);
}

const struct transport_ops transport_shm = {
	.name = "shm",
	.open = shm_open_transport,
	.close = shm_close,
	.address = shm_address,
	.connect = shm_connect,
	.disconnect = shm_disconnect,
	.reg = shm_reg,
	.dereg = shm_dereg,
	.write = shm_write,
	.send = shm_send,
	.poll = shm_poll,
};
