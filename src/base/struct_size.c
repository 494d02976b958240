/* SPDX-License-Identifier: Apache-2.0 */
#include "base/struct_size.h"

#include <string.h>

#include "base/error.h"

static size_t lesser(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* Every struct is aligned as its size is, so that no size ends within a field. */
bool struct_size_is_possible(const struct struct_kind *kind, size_t size)
{
	return size >= kind->least && size <= STRUCT_MOST && size % sizeof(size_t) == 0;
}

int struct_check(const struct struct_kind *kind, const void *theirs)
{
	size_t size;

	if (!theirs)
		return fail(TERN_ERR_INVALID, "%s is NULL", kind->name);
	memcpy(&size, theirs, sizeof(size));
	if (struct_size_is_possible(kind, size))
		return 0;
	return fail(TERN_ERR_INVALID, "%s.size is %zu, which no version's is; %s makes it %zu",
		kind->name, size, kind->set_by, kind->known);
}

static int check_rest(const struct struct_kind *kind, const void *theirs)
{
	const unsigned char *bytes = theirs;
	size_t size;

	memcpy(&size, theirs, sizeof(size));
	for (size_t i = kind->known; i < size; i++)
		if (bytes[i])
			return fail(TERN_ERR_INVALID,
				"%s.size is %zu, and its byte %zu is set; this library knows %zu "
				"bytes and is older than "
				"the caller's header",
				kind->name, size, i, kind->known);
	return 0;
}

int struct_read(const struct struct_kind *kind, const void *theirs, void *mine)
{
	int rc = struct_check(kind, theirs);

	rc = rc ? rc : check_rest(kind, theirs);
	if (rc)
		return rc;
	memcpy(mine, theirs, lesser(*(const size_t *)theirs, kind->known));
	*(size_t *)mine = kind->known;
	return 0;
}

void *struct_copy(const struct struct_kind *kind, const void *theirs, void *room)
{
	memset(room, 0, kind->known);
	return struct_read(kind, theirs, room) ? NULL : room;
}

static void fill(size_t known, void *theirs, size_t size, const void *mine)
{
	size_t both = lesser(size, known);

	if (size <= sizeof(size_t))
		return;
	memcpy((char *)theirs + sizeof(size_t), (const char *)mine + sizeof(size_t),
		both - sizeof(size_t));
	memset((char *)theirs + both, 0, size - both);
}

int struct_out(const struct struct_kind *kind, void *theirs, const void *mine)
{
	int rc = struct_check(kind, theirs);

	if (!rc)
		fill(kind->known, theirs, *(const size_t *)theirs, mine);
	return rc;
}

void struct_init(const struct struct_kind *kind, void *theirs, size_t size, const void *mine)
{
	fill(kind->known, theirs, size, mine);
	if (size >= sizeof(size_t))
		*(size_t *)theirs = size;
}
