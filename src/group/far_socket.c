/* SPDX-License-Identifier: Apache-2.0 */
#include "group/far_socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

static void add_address(struct far_address *mine, uint32_t address)
{
	for (uint32_t i = 0; i < mine->nr; i++)
		if (mine->addresses[i] == address)
			return;
	if (mine->nr < FAR_MOST_ADDRESSES)
		mine->addresses[mine->nr++] = address;
}

/* Of this process's interfaces; the loopback last, for nodes that are told apart by name alone. */
static void list_addresses(struct far_address *mine)
{
	const char *set = getenv("TERN_NODE_ADDRESS");
	struct ifaddrs *all;
	struct in_addr one;

	if (set && inet_pton(AF_INET, set, &one) == 1) {
		add_address(mine, one.s_addr);
		return;
	}
	if (getifaddrs(&all))
		return;
	for (int loopback = 0; loopback < 2; loopback++)
		for (struct ifaddrs *i = all; i; i = i->ifa_next) {
			struct sockaddr_in in;

			int is_loopback = (i->ifa_flags & IFF_LOOPBACK) != 0;

			if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET ||
				!(i->ifa_flags & IFF_UP) || is_loopback != loopback)
				continue;
			memcpy(&in, i->ifa_addr, sizeof(in));
			add_address(mine, in.sin_addr.s_addr);
		}
	freeifaddrs(all);
}

int far_listen(struct far_address *mine)
{
	struct sockaddr_in in = {.sin_family = AF_INET};
	const char *set = getenv("TERN_NODE_ADDRESS");
	socklen_t bytes = sizeof(in);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	*mine = (struct far_address){0};
	if (fd < 0)
		return -1;
	if (set && inet_pton(AF_INET, set, &in.sin_addr) != 1)
		in.sin_addr.s_addr = INADDR_ANY;
	if (bind(fd, (struct sockaddr *)&in, bytes) || listen(fd, 1024) ||
		getsockname(fd, (struct sockaddr *)&in, &bytes)) {
		close(fd);
		return -1;
	}
	mine->port = in.sin_port;
	list_addresses(mine);
	return fd;
}

int far_begin(const struct far_address *to, uint32_t which)
{
	struct sockaddr_in in = {.sin_family = AF_INET,
		.sin_port = (uint16_t)to->port,
		.sin_addr.s_addr = to->addresses[which]};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0 || !connect(fd, (struct sockaddr *)&in, sizeof(in)) || errno == EINPROGRESS)
		return fd;
	close(fd);
	return -1;
}

static int wait_for(int fd, uint64_t end_ns)
{
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	socklen_t length = sizeof(int);
	int cause = 1;

	for (uint64_t now; (now = clock_ns()) < end_ns;)
		if (poll(&p, 1, (int)((end_ns - now) / 1000000) + 1) == 1) {
			getsockopt(fd, SOL_SOCKET, SO_ERROR, &cause, &length);
			break;
		}
	return cause;
}

int far_connect(const struct far_address *to, int wait_ms)
{
	uint64_t end_ns = clock_ns() + (uint64_t)wait_ms * 1000000;

	for (uint32_t i = 0; i < to->nr && i < FAR_MOST_ADDRESSES && clock_ns() < end_ns; i++) {
		uint64_t try_ns = clock_ns() + FAR_TRY_NS;
		int fd = far_begin(to, i);

		if (fd >= 0 && !wait_for(fd, try_ns < end_ns ? try_ns : end_ns))
			return fd;
		if (fd >= 0)
			close(fd);
	}
	return -1;
}
