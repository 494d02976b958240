/* SPDX-License-Identifier: Apache-2.0 */
#include "group/join_wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/* What does not fit into the socket's buffer at once is for nobody: whoever reads so little is not
 * waiting for an answer. */
bool join_send(
	int socket, bool is_far, const struct join_message *message, const int *fds, int nr_fds)
{
	if (!is_far)
		return local_send(socket, message, sizeof(*message), fds, nr_fds);
	return send(socket, message, sizeof(*message), MSG_NOSIGNAL | MSG_DONTWAIT) ==
	       sizeof(*message);
}

bool join_receive(int socket, struct join_coming *coming, struct join_message *message,
	struct local_message *came)
{
	ssize_t length;

	if (!coming)
		return local_receive(socket, message, sizeof(*message), came);
	*came = (struct local_message){.fds = {-1, -1}, .whole = true};
	length = recv(socket, (uint8_t *)&coming->message + coming->nr,
		sizeof(coming->message) - coming->nr, MSG_DONTWAIT);
	if (length < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	if (length <= 0)
		return true;
	coming->nr += (size_t)length;
	if (coming->nr < sizeof(coming->message))
		return false;
	coming->nr = 0;
	*message = coming->message;
	came->bytes = sizeof(*message);
	return true;
}
