/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/late.h"

#include <dirent.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static unsigned long long late_of_thread(pid_t pid, const char *thread)
{
	unsigned long long ran, late = 0;
	char path[96];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/task/%.32s/schedstat", (int)pid, thread);
	file = fopen(path, "r");
	if (file && fscanf(file, "%llu %llu", &ran, &late) != 2)
		late = 0;
	if (file)
		fclose(file);
	return late;
}

unsigned long long late_of(pid_t pid)
{
	unsigned long long sum = 0;
	char path[48];
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	dir = opendir(path);
	for (struct dirent *entry; dir && (entry = readdir(dir));)
		if (entry->d_name[0] != '.')
			sum += late_of_thread(pid, entry->d_name);
	if (dir)
		closedir(dir);
	return sum;
}

unsigned long long late_ns(void)
{
	return late_of(getpid());
}

unsigned long long passed_ns(unsigned long long from_ns)
{
	unsigned long long late = late_ns(), passed;
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	passed = (unsigned long long)now.tv_sec * 1000000000u + (unsigned long long)now.tv_nsec -
		 from_ns;
	return passed > late ? passed - late : 0;
}
