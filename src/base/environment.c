/* SPDX-License-Identifier: Apache-2.0 */
#include "base/environment.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* strtoll takes more than numbers: blanks and signs before them, and 0 before octal ones. */
static bool parse(const char *text, long long *value)
{
	const char *digits = text + (*text == '-');
	int base = strncasecmp(digits, "0x", 2) ? 10 : 16;
	char *end;

	digits += base == 16 ? 2 : 0;
	errno = 0;
	*value = strtoll(text, &end, base);
	return isxdigit((unsigned char)*digits) && !*end && !errno;
}

int environment_number(const char *name, int least, int most, int *number)
{
	const char *text = getenv(name);
	long long value;

	if (!text)
		return 0;
	if (!parse(text, &value) || value < least || value > most)
		return fail(TERN_ERR_INVALID,
			"%s is \"%.64s\"; it has to be a whole number from %d to %d", name, text,
			least, most);
	*number = (int)value;
	return 0;
}
