/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/shm/mailbox.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/sealed.h"

/* The mailboxes that ranks of this process own. Taken on opening, connecting and closing only. */
static pthread_mutex_t own_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mailbox *own;

static int mailbox_map(struct mailbox *m)
{
	void *base =
		mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, m->fd, 0);

	if (base == MAP_FAILED)
		return fail_errno("mapping a mailbox of %llu bytes", (unsigned long long)m->bytes);
	madvise(base, m->bytes, MADV_DONTDUMP);
	m->head = base;
	return 0;
}

static void mailbox_free(struct mailbox *m)
{
	if (m->head)
		munmap(m->head, m->bytes);
	if (m->fd >= 0)
		close(m->fd);
	free(m);
}

static int mailbox_fill(struct mailbox *m)
{
	int rc;

	if (getrandom(m->nonce, sizeof(m->nonce), 0) != sizeof(m->nonce))
		return fail_errno("getrandom");
	rc = sealed_memory("tern-mailbox", m->bytes, &m->fd);
	rc = rc ? rc : mailbox_map(m);
	if (rc)
		return rc;
	m->head->shape = m->shape;
	memcpy(m->head->nonce, m->nonce, sizeof(m->nonce));
	return 0;
}

int mailbox_make(const struct mailbox_shape *shape, struct mailbox **out)
{
	struct mailbox *m = calloc(1, sizeof(*m));
	int rc;

	if (!m)
		return fail(TERN_ERR_NOMEM, "no memory for a mailbox's record");
	m->shape = *shape;
	m->bytes = mailbox_bytes(shape);
	m->pid = getpid();
	m->references = 1;
	m->fd = -1;
	rc = mailbox_fill(m);
	if (rc) {
		mailbox_free(m);
		return rc;
	}
	pthread_mutex_lock(&own_lock);
	m->next = own;
	own = m;
	pthread_mutex_unlock(&own_lock);
	*out = m;
	return 0;
}

/* A child that was forked has its parent's list, but those mailboxes are not its own. */
static struct mailbox *find_here(int32_t pid, const uint64_t *nonce)
{
	struct mailbox *m;

	pthread_mutex_lock(&own_lock);
	for (m = pid == getpid() ? own : NULL; m; m = m->next)
		if (m->pid == pid && !memcmp(m->nonce, nonce, sizeof(m->nonce)))
			break;
	if (m)
		m->references++;
	pthread_mutex_unlock(&own_lock);
	return m;
}

static int shape_is_sane(const struct mailbox_shape *s)
{
	return s->nr_connections && s->nr_connections <= 1u << 20 && s->nr_immediates &&
	       s->nr_immediates <= 1u << 24 && !(s->nr_immediates & (s->nr_immediates - 1)) &&
	       s->message_bytes <= 1u << 24;
}

static int mailbox_check(struct mailbox *m, const uint64_t *nonce)
{
	int seals = fcntl(m->fd, F_GET_SEALS), rc;
	struct stat st;

	if (fstat(m->fd, &st) || seals < 0 || !(seals & F_SEAL_SHRINK) ||
		(uint64_t)st.st_size < sizeof(struct mailbox_head))
		return fail(TERN_ERR_PROTOCOL, "process %d has no mailbox where it says", m->pid);
	m->bytes = (uint64_t)st.st_size;
	rc = mailbox_map(m);
	if (rc)
		return rc;
	m->shape = m->head->shape;
	memcpy(m->nonce, m->head->nonce, sizeof(m->nonce));
	if (memcmp(m->nonce, nonce, sizeof(m->nonce)))
		return fail(TERN_ERR_PEER_DEAD, "process %d has another mailbox: its rank is gone",
			m->pid);
	if (!shape_is_sane(&m->shape) || mailbox_bytes(&m->shape) != m->bytes)
		return fail(TERN_ERR_PROTOCOL,
			"the mailbox of process %d has %llu bytes in place of %llu", m->pid,
			(unsigned long long)m->bytes, (unsigned long long)mailbox_bytes(&m->shape));
	return 0;
}

static int fail_open(const char *path)
{
	int cause = errno, rc = fail_errno("opening %s, a rank's mailbox", path);

	if (cause == ENOENT || cause == ESRCH)
		return fail(TERN_ERR_PEER_DEAD, "%s", tern_last_error());
	return cause == EACCES || cause == EPERM
		       ? fail(TERN_ERR_UNSUPPORTED, "%s", tern_last_error())
		       : rc;
}

/* A foreign mailbox is in no list: its next is itself. */
static int mailbox_attach(int32_t pid, int fd, const uint64_t *nonce, struct mailbox **out)
{
	struct mailbox *m = calloc(1, sizeof(*m));
	char path[64];
	int rc;

	if (!m)
		return fail(TERN_ERR_NOMEM, "no memory for a mailbox's record");
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
	m->pid = pid;
	m->references = 1;
	m->next = m;
	m->fd = open(path, O_RDWR | O_CLOEXEC);
	rc = m->fd < 0 ? fail_open(path) : mailbox_check(m, nonce);
	if (rc) {
		mailbox_free(m);
		return rc;
	}
	close(m->fd);
	m->fd = -1;
	*out = m;
	return 0;
}

int mailbox_find(int32_t pid, int fd, const uint64_t *nonce, struct mailbox **out)
{
	struct mailbox *m = find_here(pid, nonce);

	if (!m && pid == getpid())
		return fail(
			TERN_ERR_PEER_LEFT, "that rank of this process has closed its transport");
	if (!m)
		return mailbox_attach(pid, fd, nonce, out);
	*out = m;
	return 0;
}

static void leave_list(struct mailbox *m)
{
	for (struct mailbox **at = &own; *at; at = &(*at)->next)
		if (*at == m) {
			*at = m->next;
			return;
		}
}

void mailbox_release(struct mailbox *m)
{
	bool last;

	if (!m)
		return;
	pthread_mutex_lock(&own_lock);
	last = --m->references == 0;
	if (last && mailbox_here(m))
		leave_list(m);
	pthread_mutex_unlock(&own_lock);
	if (last)
		mailbox_free(m);
}
