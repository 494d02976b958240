/* SPDX-License-Identifier: Apache-2.0 */
/* The data path of the shared-memory transport. */
#include "transport/shm/shm.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

#include "base/clock.h"
#include "base/error.h"
#include "transport/write_check.h"

#define LOOK_NS 1000000u
#define LOOK_POLLS 16 /* the clock is read once in so many polls */

/* ---- writing --------------------------------------------------------------------------------- */

static int peer_fails(struct shm *s, uint32_t p, int error, const char *what)
{
	struct shm_peer *peer = &s->peers[p];

	if (!peer->failed) {
		peer->failed = true;
		peer->error = error;
		s->any_failed = true;
		snprintf(peer->text, sizeof(peer->text), "%s", what);
	}
	return fail(peer->error, "peer %u: %s", p, peer->text);
}

static int check_peer(const struct shm *s, uint32_t p)
{
	if (p >= s->nr_peers || !s->peers[p].mailbox)
		return fail(TERN_ERR_INVALID, "peer %u is not connected", p);
	if (s->peers[p].failed)
		return fail(TERN_ERR_PEER_DEAD, "peer %u: %s", p, s->peers[p].text);
	return 0;
}

static int check_source(const struct transport_write *w)
{
	const struct transport_region *region = w->region;
	int rc = write_check_bytes(w, "a write", SHM_WRITE_MOST);

	if (rc || (!region && (w->flags & WRITE_INLINE)))
		return rc;
	return write_check_source(w, region ? region->base : NULL, region ? region->bytes : 0);
}

/* Where the bytes go in the target's address space: looked up in its own list, so that a stale key
 * touches nothing. */
static int find_target(struct shm *s, const struct transport_write *w, uint64_t *to)
{
	const struct shm_peer *peer = &s->peers[w->peer];
	const struct mailbox_region *entry;
	int rc = write_check_target(w);

	if (rc)
		return rc;
	entry = &peer->mailbox->head->regions[w->key->key & (MAILBOX_REGIONS - 1)];
	if (region_observe(entry) != w->key->key &&
		atomic_load_explicit(&peer->mailbox->head->closed, memory_order_acquire))
		return peer_fails(s, w->peer, TERN_ERR_PEER_LEFT, "it has closed its transport");
	if (!w->key->key || region_observe(entry) != w->key->key)
		return fail(TERN_ERR_INVALID, "peer %u has no region with key %llx (any more)",
			w->peer, (unsigned long long)w->key->key);
	*to = entry->base + w->offset;
	return write_check_inside(w, entry->bytes);
}

static int copy_across(struct shm *s, uint32_t p, const uint8_t *from, uint64_t to, uint64_t bytes)
{
	struct mailbox *mailbox = s->peers[p].mailbox;

	while (bytes) {
		struct iovec local = {.iov_base = (void *)(uintptr_t)from, .iov_len = bytes};
		struct iovec remote = {.iov_base = (void *)(uintptr_t)to, .iov_len = bytes};
		ssize_t done = process_vm_writev(mailbox->pid, &local, 1, &remote, 1, 0);

		if (done <= 0 && errno == ESRCH)
			return peer_fails(s, p, TERN_ERR_PEER_DEAD, "its process has ended");
		if (done <= 0)
			return fail_errno("copying %llu bytes into process %d",
				(unsigned long long)bytes, mailbox->pid);
		from += done;
		to += (uint64_t)done;
		bytes -= (uint64_t)done;
	}
	return 0;
}

static int move_bytes(struct shm *s, const struct transport_write *w)
{
	struct shm_peer *peer = &s->peers[w->peer];
	uint64_t to = 0;
	int rc = check_source(w);

	if (!rc)
		rc = find_target(s, w, &to);
	if (rc)
		return rc;
	if (!mailbox_here(peer->mailbox))
		return copy_across(s, w->peer, w->from, to, w->bytes);
	memmove((void *)(uintptr_t)to, w->from, w->bytes);
	return 0;
}

static bool has_room(const struct shm *s, const struct shm_peer *peer, uint32_t flags)
{
	uint32_t waiting = peer->immediates_put - connection_retired(&peer->connection->immediates);

	if ((flags & WRITE_IMMEDIATE) && waiting >= peer->mailbox->shape.nr_immediates)
		return false;
	return !(flags & WRITE_SIGNALLED) ||
	       s->completions_put - s->completions_taken < s->nr_completions;
}

int shm_write(struct transport *transport, const struct transport_write *w)
{
	struct shm *s = shm_of(transport);
	int rc = check_peer(s, w->peer);
	struct shm_peer *peer;

	if (rc)
		return rc;
	peer = &s->peers[w->peer];
	if (!has_room(s, peer, w->flags))
		return TRANSPORT_AGAIN;
	rc = w->bytes ? move_bytes(s, w) : 0;
	if (rc)
		return rc;
	if (w->flags & WRITE_IMMEDIATE) {
		*connection_immediate(peer->mailbox, peer->connection, peer->immediates_put) =
			w->immediate;
		connection_publish(&peer->connection->immediates, ++peer->immediates_put);
	}
	if (w->flags & WRITE_SIGNALLED)
		s->completions[s->completions_put++ & (s->nr_completions - 1)] =
			(struct transport_event){
				.kind = EVENT_WRITTEN, .peer = w->peer, .cookie = w->cookie};
	return 0;
}

int shm_send(struct transport *transport, uint32_t p, const void *data, uint32_t bytes)
{
	struct shm *s = shm_of(transport);
	int rc = check_peer(s, p);
	struct mailbox_message *message;
	struct shm_peer *peer;

	if (rc)
		return rc;
	peer = &s->peers[p];
	if (bytes > peer->mailbox->shape.message_bytes || bytes > s->mailbox->shape.message_bytes)
		return fail(TERN_ERR_INVALID, "a message of %u bytes; peer %u takes %u", bytes, p,
			peer->mailbox->shape.message_bytes);
	if (peer->messages_put - connection_retired(&peer->connection->messages) >=
		MAILBOX_MESSAGES)
		return TRANSPORT_AGAIN;
	message = connection_message(peer->mailbox, peer->connection, peer->messages_put);
	message->bytes = bytes;
	if (bytes)
		memcpy(message->data, data, bytes);
	connection_publish(&peer->connection->messages, ++peer->messages_put);
	return 0;
}

/* ---- polling --------------------------------------------------------------------------------- */

static int take_completions(struct shm *s, struct transport_event *events, int max)
{
	int nr = 0;

	while (nr < max && s->completions_taken != s->completions_put)
		events[nr++] = s->completions[s->completions_taken++ & (s->nr_completions - 1)];
	return nr;
}

static int take_immediates(struct shm *s, uint32_t p, struct transport_event *events, int max)
{
	struct connection *connection = s->peers[p].inbox;
	uint32_t tail = atomic_load_explicit(&connection->immediates.tail, memory_order_relaxed);
	uint32_t waiting = connection_observe(&connection->immediates) - tail;
	int nr = 0;

	if (!waiting)
		return 0;
	if (waiting > s->mailbox->shape.nr_immediates) {
		peer_fails(s, p, TERN_ERR_PROTOCOL, "its count of immediates is impossible");
		return 0;
	}
	for (; waiting && nr < max; waiting--)
		events[nr++] = (struct transport_event){.kind = EVENT_IMMEDIATE,
			.peer = p,
			.immediate = *connection_immediate(s->mailbox, connection, tail++)};
	connection_retire(&connection->immediates, tail);
	return nr;
}

/* Slots that the last poll gave out are retired by this one. */
static int take_messages(struct shm *s, uint32_t p, struct transport_event *events, int max)
{
	struct shm_peer *peer = &s->peers[p];
	struct connection_ring *ring = &peer->inbox->messages;
	uint32_t waiting = connection_observe(ring) - peer->messages_read;
	int nr = 0;

	if (atomic_load_explicit(&ring->tail, memory_order_relaxed) != peer->messages_read)
		connection_retire(ring, peer->messages_read);
	if (waiting > MAILBOX_MESSAGES) {
		peer_fails(s, p, TERN_ERR_PROTOCOL, "its count of messages is impossible");
		return 0;
	}
	for (; waiting && nr < max; waiting--) {
		struct mailbox_message *message =
			connection_message(s->mailbox, peer->inbox, peer->messages_read);
		uint32_t bytes = *(volatile uint32_t *)&message->bytes;

		if (bytes > s->mailbox->shape.message_bytes) {
			peer_fails(s, p, TERN_ERR_PROTOCOL, "a message is longer than its slot");
			break;
		}
		peer->messages_read++;
		events[nr++] = (struct transport_event){
			.kind = EVENT_MESSAGE, .peer = p, .data = message->data, .bytes = bytes};
	}
	return nr;
}

static void look_after_peers(struct shm *s)
{
	uint64_t now;

	if (++s->nr_polls % LOOK_POLLS)
		return;
	now = clock_ns();
	if (now - s->looked_ns < LOOK_NS)
		return;
	s->looked_ns = now;
	for (uint32_t p = 0; p < s->nr_peers; p++)
		if (s->peers[p].mailbox && p != s->self &&
			atomic_load_explicit(
				&s->peers[p].mailbox->head->closed, memory_order_acquire))
			peer_fails(s, p, TERN_ERR_PEER_LEFT, "it has closed its transport");
	if (poll(s->lives, s->nr_peers, 0) <= 0)
		return;
	for (uint32_t p = 0; p < s->nr_peers; p++)
		if (s->lives[p].fd >= 0 && s->lives[p].revents)
			peer_fails(s, p, TERN_ERR_PEER_DEAD, "its process has ended");
}

/* After all that it has sent. */
static int report_failed(struct shm *s, struct transport_event *events, int max)
{
	int nr = 0;

	for (uint32_t p = 0; p < s->nr_peers && nr < max; p++) {
		struct shm_peer *peer = &s->peers[p];
		bool broken = peer->error == TERN_ERR_PROTOCOL;

		if (!peer->failed || peer->reported ||
			(!broken && (connection_observe(&peer->inbox->messages) !=
						    peer->messages_read ||
					    connection_observe(&peer->inbox->immediates) !=
						    connection_retired(&peer->inbox->immediates))))
			continue;
		peer->reported = true;
		events[nr++] = (struct transport_event){.kind = EVENT_PEER_DOWN,
			.peer = p,
			.error = peer->error,
			.text = peer->text};
	}
	return nr;
}

int shm_poll(struct transport *transport, struct transport_event *events, int max)
{
	struct shm *s = shm_of(transport);
	int nr = take_completions(s, events, max);

	look_after_peers(s);
	for (uint32_t i = 0; i < s->nr_peers; i++) {
		uint32_t p = s->next_peer + i < s->nr_peers ? s->next_peer + i
							    : s->next_peer + i - s->nr_peers;

		nr += take_messages(s, p, events + nr, max - nr);
		nr += take_immediates(s, p, events + nr, max - nr);
	}
	s->next_peer = s->next_peer + 1 < s->nr_peers ? s->next_peer + 1 : 0;
	return nr + (s->any_failed ? report_failed(s, events + nr, max - nr) : 0);
}
