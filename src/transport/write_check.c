/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/write_check.h"

#include "base/error.h"

int write_check_bytes(const struct transport_write *w, const char *what, uint64_t most)
{
	return w->bytes <= most
		       ? 0
		       : fail(TERN_ERR_INVALID, "peer %u: %s of %llu bytes, at most %llu", w->peer,
				 what, (unsigned long long)w->bytes, (unsigned long long)most);
}

int write_check_source(const struct transport_write *w, const void *base, uint64_t bytes)
{
	uint64_t from = (uintptr_t)w->from, begin = (uintptr_t)base;

	if (!w->region)
		return fail(TERN_ERR_INVALID,
			"peer %u: a write of %llu bytes from memory that is not registered",
			w->peer, (unsigned long long)w->bytes);
	if (from >= begin && w->bytes <= bytes && from - begin <= bytes - w->bytes)
		return 0;
	return fail(TERN_ERR_INVALID,
		"peer %u: a write of %llu bytes from %p, outside its region of %llu from %p",
		w->peer, (unsigned long long)w->bytes, w->from, (unsigned long long)bytes, base);
}

int write_check_inside(const struct transport_write *w, uint64_t bytes)
{
	return w->offset <= bytes && w->bytes <= bytes - w->offset
		       ? 0
		       : fail(TERN_ERR_INVALID, "peer %u: %llu bytes at %llu of a region of %llu",
				 w->peer, (unsigned long long)w->bytes,
				 (unsigned long long)w->offset, (unsigned long long)bytes);
}

int write_check_target(const struct transport_write *w)
{
	return w->key ? write_check_inside(w, w->key->bytes)
		      : fail(TERN_ERR_INVALID, "peer %u: a write of %llu bytes without a key",
				w->peer, (unsigned long long)w->bytes);
}
