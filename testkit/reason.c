/* SPDX-License-Identifier: Apache-2.0 */
#include "testkit/reason.h"

#include <stdarg.h>
#include <stdio.h>

int refuse(struct reason *why, const char *format, ...)
{
	va_list args;

	if (!why)
		return -1;
	va_start(args, format);
	vsnprintf(why->text, sizeof(why->text), format, args);
	va_end(args);
	return -1;
}
