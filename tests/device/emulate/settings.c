/* SPDX-License-Identifier: Apache-2.0 */
/* What TERN_EMULATED_ variables say: of devices, of chance, and of what is left out on purpose. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device/emulate/inside.h"

#define MOST_WITHOUT 8 /* lines of one function that are left out, or numbered for it */

static struct settings settings;
static uint64_t random_state;

void emulated_die(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	fflush(stdout);
	fprintf(stderr,
		"emulated GPU, TERN_EMULATED_SEED=%llu: ", (unsigned long long)settings.seed);
	vfprintf(stderr, format, list);
	fprintf(stderr, "\n");
	va_end(list);
	abort();
}

static uint64_t setting(const char *name, uint64_t otherwise, uint64_t most)
{
	const char *text = getenv(name);
	uint64_t value = text && *text ? strtoull(text, NULL, 0) : otherwise;

	return value < most ? value : most;
}

static void load_settings(void)
{
	const char *stores = getenv("TERN_EMULATED_STORES"),
		   *processes = getenv("TERN_EMULATED_PROCESSES");

	settings.nr_devices = (uint32_t)setting("TERN_EMULATED_GPUS", 4, MAX_DEVICES);
	settings.nr_sms = (uint32_t)setting("TERN_EMULATED_SMS", 8, 1024);
	settings.seed = setting("TERN_EMULATED_SEED", 1, UINT64_MAX);
	settings.lines = setting("TERN_EMULATED_LINES", 1, 1);
	settings.nvlink_domain = (uint32_t)setting("TERN_EMULATED_NVLINK_DOMAIN", 0, MAX_DEVICES);
	settings.block_bytes = (size_t)setting("TERN_EMULATED_BLOCK_KIB", 227, 227) * 1024;
	settings.code = (uint32_t)setting("TERN_EMULATED_CODE", 90, 100);
	settings.without = getenv("TERN_EMULATED_WITHOUT");
	settings.delayed = !stores || strcmp(stores, "direct") != 0;
	random_state = settings.seed;
	if (processes && *processes)
		processes_open(processes);
	for (uint32_t d = 0; d < settings.nr_devices; d++) {
		emulated_devices[d].room = settings.nr_sms;
		emulated_devices[d].stream.device = (int)d;
		stream_add(&emulated_devices[d].stream);
	}
}

/* Lines are numbered as they are come to. A template's function has its arguments in its name. */
static bool is_left_out(const char *what, const char *in, int line)
{
	static int lines[MOST_WITHOUT];
	const char *at = settings.without;
	size_t nr = strcspn(in, "<"), nr_what = strlen(what);
	unsigned number = 0;

	if (strncmp(at, in, nr) || at[nr] != ':' || strncmp(at + nr + 1, what, nr_what))
		return false;
	at += nr + 1 + nr_what;
	if (*at && *at != ':')
		return false;
	while (number < MOST_WITHOUT && lines[number] && lines[number] != line)
		number++;
	if (number == MOST_WITHOUT)
		emulated_die("more than %d places are %s", MOST_WITHOUT, settings.without);
	if (*at && strtoul(at + 1, NULL, 10) != number + 1) {
		lines[number] = line;
		return false;
	}
	if (!lines[number])
		fprintf(stderr, "emulated GPUs: left out: %s, line %d\n", settings.without, line);
	lines[number] = line;
	return true;
}

bool emulated_without(const char *what, const char *in, int line)
{
	return settings.without && is_left_out(what, in, line);
}

const struct settings *emulated_settings(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load_settings);
	return &settings;
}

void random_reset(uint64_t seed)
{
	settings.seed = random_state = seed;
}

/* splitmix64 */
uint32_t emulated_random(uint32_t below)
{
	uint64_t z = random_state += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return (uint32_t)(((z ^ z >> 31) >> 32) * below >> 32);
}
