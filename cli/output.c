/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void output_init(struct output *o, int fd, int to, int rank)
{
	fcntl(fd, F_SETFL, O_NONBLOCK);
	*o = (struct output){.fd = fd, .to = to, .rank = rank};
}

static void write_all(int fd, const char *text, size_t bytes)
{
	while (bytes) {
		ssize_t n = write(fd, text, bytes);

		if (n < 0 && errno != EINTR)
			return; /* nobody listens: what the ranks do goes on */
		if (n > 0) {
			text += n;
			bytes -= (size_t)n;
		}
	}
}

/* One write for each line, so that lines of ranks do not mix on a terminal. The text has room for
 * the newline. */
static void put_line(const struct output *o, const char *line, size_t bytes)
{
	char prefix[16];
	size_t head = (size_t)snprintf(prefix, sizeof(prefix), "[%d] ", o->rank);
	char *whole = malloc(head + bytes);

	if (!whole) {
		write_all(o->to, line, bytes);
		return;
	}
	memcpy(whole, prefix, head);
	memcpy(whole + head, line, bytes);
	write_all(o->to, whole, head + bytes);
	free(whole);
}

static void put_lines(struct output *o)
{
	char *line = o->text, *end;

	while ((end = memchr(line, '\n', o->used - (size_t)(line - o->text)))) {
		put_line(o, line, (size_t)(end + 1 - line));
		line = end + 1;
	}
	o->used -= (size_t)(line - o->text);
	memmove(o->text, line, o->used);
}

static bool make_room(struct output *o)
{
	size_t room = o->room ? o->room * 2 : 4096;
	char *text;

	if (o->used + 1 < o->room)
		return true;
	text = realloc(o->text, room);
	if (!text)
		return false;
	o->text = text;
	o->room = room;
	return true;
}

static void close_output(struct output *o)
{
	close(o->fd);
	o->fd = -1;
	if (o->used) {
		o->text[o->used++] = '\n';
		put_lines(o);
	}
	free(o->text);
	o->text = NULL;
}

void output_ready(struct output *o)
{
	ssize_t n;

	while (o->fd >= 0) {
		n = make_room(o) ? read(o->fd, o->text + o->used, o->room - o->used - 1) : 0;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			close_output(o);
			return;
		}
		o->used += (size_t)n;
		put_lines(o);
	}
}

void output_end(struct output *o)
{
	output_ready(o);
	if (o->fd >= 0)
		close_output(o);
}
