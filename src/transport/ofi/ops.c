/* SPDX-License-Identifier: Apache-2.0 */
/* Operations live in slabs with their registered buffers. A provider may hold on to one for ever (a
 * write to a peer that vanished), so what a disconnect leaves behind is replaced on the next
 * connect and taken back if it ever completes. */
#include "transport/ofi/ofi.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/private_memory.h"

static void slab_free(struct ofi_slab *slab)
{
	if (slab->mr)
		fi_close(&slab->mr->fid);
	private_unmap(slab->buffers, slab->bytes);
	free(slab);
}

int ofi_pool_grow(struct ofi *o, struct ofi_pool *pool, uint32_t nr_ops)
{
	struct ofi_slab *slab = calloc(1, sizeof(*slab) + nr_ops * sizeof(slab->ops[0]));
	struct iovec memory;
	struct fi_mr_attr attr = {
		.mr_iov = &memory, .iov_count = 1, .access = FI_SEND | FI_RECV | FI_WRITE};
	int rc;

	if (!slab)
		return fail(TERN_ERR_NOMEM, "no memory for %u operations", nr_ops);
	slab->nr_ops = nr_ops;
	slab->bytes = (uint64_t)nr_ops * pool->buffer_bytes;
	slab->buffers = private_map(slab->bytes, PRIVATE_DENSE);
	memory = (struct iovec){slab->buffers, slab->bytes};
	rc = slab->buffers ? ofi_reg_mr(o, &attr, &slab->mr)
			   : fail(TERN_ERR_NOMEM, "no memory for %u operations", nr_ops);
	if (rc) {
		slab_free(slab);
		return rc;
	}
	for (uint32_t i = 0; i < nr_ops; i++) {
		slab->ops[i].buffer = slab->buffers + (uint64_t)i * pool->buffer_bytes;
		slab->ops[i].desc = fi_mr_desc(slab->mr);
		slab->ops[i].next = pool->free;
		pool->free = &slab->ops[i];
	}
	slab->next = pool->slabs;
	pool->slabs = slab;
	return 0;
}

void ofi_pool_free(struct ofi_pool *pool)
{
	while (pool->slabs) {
		struct ofi_slab *next = pool->slabs->next;

		slab_free(pool->slabs);
		pool->slabs = next;
	}
	pool->free = NULL;
}

static struct ofi_pool *pool_of(struct ofi *o, enum ofi_kind kind)
{
	switch (kind) {
	case OFI_SEND:
		return &o->sends;
	case OFI_HELLO:
		return &o->greetings;
	case OFI_RECEIVE:
		return &o->receives;
	default:
		return &o->writes;
	}
}

struct ofi_op *ofi_op_take(struct ofi *o, enum ofi_kind kind, uint32_t peer)
{
	struct ofi_pool *pool = pool_of(o, kind);
	struct ofi_op *op = pool->free;

	if (!op)
		return NULL;
	pool->free = op->next;
	op->next = NULL;
	op->kind = kind;
	op->peer = peer;
	op->busy = true;
	op->signalled = op->told = false;
	return op;
}

void ofi_op_return(struct ofi *o, struct ofi_op *op)
{
	struct ofi_pool *pool = pool_of(o, op->kind);

	op->busy = false;
	op->next = pool->free;
	pool->free = op;
}

void ofi_op_posted(struct ofi *o, struct ofi_op *op)
{
	struct ofi_peer *peer = &o->peers[op->peer];

	o->nr_under_way++;
	peer->nr_under_way++;
	peer->nr_sends += op->kind == OFI_SEND;
	peer->nr_greetings += op->kind == OFI_HELLO;
}

/* Operations of a peer that is gone have no peer any more. */
void ofi_op_ended(struct ofi *o, struct ofi_op *op)
{
	o->nr_under_way--;
	if (op->peer < o->nr_peers) {
		struct ofi_peer *peer = &o->peers[op->peer];

		peer->nr_under_way--;
		peer->nr_sends -= op->kind == OFI_SEND;
		peer->nr_greetings -= op->kind == OFI_HELLO;
		peer->moved = true;
	}
	ofi_op_return(o, op);
}
