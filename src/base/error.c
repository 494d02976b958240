/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[1024];

const char *tern_last_error(void)
{
	return last_error;
}

void error_put_back(const char *text)
{
	memccpy(last_error, text, 0, sizeof(last_error) - 1);
}

int fail(int code, const char *format, ...)
{
	char text[sizeof(last_error)]; /* the arguments may point into last_error */
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	memcpy(last_error, text, sizeof(text));
	return code;
}

int check_range(const char *name, int64_t value, int64_t least, int64_t most)
{
	if (value >= least && value <= most)
		return 0;
	return fail(TERN_ERR_INVALID, "%s is %lld; %lld to %lld are possible", name,
		(long long)value, (long long)least, (long long)most);
}

int error_of_errno(int cause)
{
	return cause == ENOMEM || cause == EMFILE || cause == ENFILE || cause == ENOBUFS
		       ? TERN_ERR_NOMEM
		       : TERN_ERR_SYSTEM;
}

int fail_errno(const char *format, ...)
{
	int cause = errno;
	char text[sizeof(last_error) - 128];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	return fail(error_of_errno(cause), "%s: %s", text, strerror(cause));
}

const char *tern_strerror(int code)
{
	switch (code) {
	case TERN_OK:
		return "TERN_OK: success";
	case TERN_ERR_INVALID:
		return "TERN_ERR_INVALID: an argument or setting is wrong";
	case TERN_ERR_STATE:
		return "TERN_ERR_STATE: a call out of order";
	case TERN_ERR_MISMATCH:
		return "TERN_ERR_MISMATCH: ranks disagree on a setting";
	case TERN_ERR_NOMEM:
		return "TERN_ERR_NOMEM: out of memory, address space or descriptors";
	case TERN_ERR_SYSTEM:
		return "TERN_ERR_SYSTEM: a system call failed";
	case TERN_ERR_BOOTSTRAP:
		return "TERN_ERR_BOOTSTRAP: the ranks could not find each other";
	case TERN_ERR_TIMEOUT:
		return "TERN_ERR_TIMEOUT: a wait expired";
	case TERN_ERR_PEER_DEAD:
		return "TERN_ERR_PEER_DEAD: a peer's process ended";
	case TERN_ERR_PEER_LEFT:
		return "TERN_ERR_PEER_LEFT: a peer left while others wait for it";
	case TERN_ERR_CAPACITY:
		return "TERN_ERR_CAPACITY: more rows than a rank can take";
	case TERN_ERR_PROTOCOL:
		return "TERN_ERR_PROTOCOL: a peer broke the protocol";
	case TERN_ERR_UNSUPPORTED:
		return "TERN_ERR_UNSUPPORTED: not available here";
	case TERN_ERR_MEMBERS:
		return "TERN_ERR_MEMBERS: a member is gone";
	case TERN_ERR_EXPELLED:
		return "TERN_ERR_EXPELLED: the others went on without this rank";
	case TERN_ERR_QUORUM:
		return "TERN_ERR_QUORUM: too few members are left";
	case TERN_ERR_LOST_EXPERTS:
		return "TERN_ERR_LOST_EXPERTS: no member holds some experts any more";
	}
	return "unknown tern error code";
}

const char *tern_version(void)
{
#define TEXT(x) #x
#define VERSION(a, b, c) TEXT(a) "." TEXT(b) "." TEXT(c)
	return VERSION(TERN_VERSION_MAJOR, TERN_VERSION_MINOR, TERN_VERSION_PATCH);
}
