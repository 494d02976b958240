/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "json.h"

#define MAX_SHARDS 1024
#define MAX_PATH 4096

static int map_fd(int fd, const char *path, struct mapped_file *file, struct fault *fault)
{
	struct stat status;
	void *bytes;

	if (fstat(fd, &status))
		return fault_say(fault, "%s: %s", path, strerror(errno));
	if (!S_ISREG(status.st_mode) || status.st_size == 0)
		return fault_say(fault, "%s: no file, or an empty one", path);
	bytes = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (bytes == MAP_FAILED)
		return fault_say(fault, "%s: %s", path, strerror(errno));
	*file = (struct mapped_file){.bytes = bytes, .size = (size_t)status.st_size};
	return 0;
}

int file_map(const char *path, struct mapped_file *file, struct fault *fault)
{
	int rc, fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return fault_say(fault, "%s: %s", path, strerror(errno));
	rc = map_fd(fd, path, file, fault);
	close(fd);
	return rc;
}

void file_unmap(struct mapped_file *file)
{
	if (file->bytes)
		munmap(file->bytes, file->size);
	*file = (struct mapped_file){0};
}

static int open_shard(
	const char *folder, const char *name, struct shard *shard, struct fault *fault)
{
	char path[MAX_PATH];
	struct fault cause;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	if (file_map(path, &shard->file, fault))
		return -1;
	if (safetensors_parse(shard->file.bytes, shard->file.size, &shard->tensors, &cause)) {
		file_unmap(&shard->file);
		return fault_say(fault, "%s: %s", path, cause.text);
	}
	return 0;
}

static int add_shard(
	const char *folder, const char *name, struct checkpoint *checkpoint, struct fault *fault)
{
	struct shard *shards =
		realloc(checkpoint->shards, (checkpoint->nr_shards + 1) * sizeof(*shards));

	if (!shards)
		return fault_say(fault, "no memory for a shard");
	checkpoint->shards = shards;
	if (open_shard(folder, name, &shards[checkpoint->nr_shards], fault))
		return -1;
	checkpoint->nr_shards++;
	return 0;
}

/* The names of the files in weight_map, each once. A real index names a few files for thousands of
 * tensors. */
static int shard_names(const struct json *json, char (**names)[SAFETENSORS_MAX_NAME],
	uint32_t *nr_names, struct fault *fault)
{
	uint32_t map = json_member(json, 0, "weight_map");

	for (uint32_t at = map + 1; map && at < json->values[map].next;
		at = json->values[at + 1].next) {
		uint32_t seen = 0;

		while (seen < *nr_names && !json_string_is(json, at + 1, (*names)[seen]))
			seen++;
		if (seen < *nr_names)
			continue;
		if (seen == MAX_SHARDS ||
			!json_string(json, at + 1, (*names)[seen], sizeof((*names)[seen])) ||
			strchr((*names)[seen], '/'))
			return fault_say(fault,
				"model.safetensors.index.json: too many files, or a bad file name");
		++*nr_names;
	}
	return *nr_names ? 0
			 : fault_say(fault,
				   "model.safetensors.index.json: no weight_map that names files");
}

static int open_named(const char *folder, const struct json *index, struct checkpoint *checkpoint,
	struct fault *fault)
{
	char(*names)[SAFETENSORS_MAX_NAME] = calloc(MAX_SHARDS, sizeof(*names));
	uint32_t nr_names = 0;
	int rc;

	if (!names)
		return fault_say(fault, "no memory for the names of shards");
	rc = shard_names(index, &names, &nr_names, fault);
	for (uint32_t i = 0; !rc && i < nr_names; i++)
		rc = add_shard(folder, names[i], checkpoint, fault);
	free(names);
	return rc;
}

static int open_index(
	const char *folder, const char *path, struct checkpoint *checkpoint, struct fault *fault)
{
	struct mapped_file file;
	struct json json;
	int rc;

	if (file_map(path, &file, fault))
		return -1;
	rc = json_parse(file.bytes, file.size, &json, fault);
	if (!rc) {
		rc = open_named(folder, &json, checkpoint, fault);
		json_free(&json);
	}
	file_unmap(&file);
	return rc;
}

int checkpoint_open(const char *folder, struct checkpoint *checkpoint, struct fault *fault)
{
	struct checkpoint opened = {0};
	char index[MAX_PATH];
	int rc;

	if (strlen(folder) > MAX_PATH - 64)
		return fault_say(fault, "the model's folder has too long a name");
	snprintf(index, sizeof(index), "%s/model.safetensors.index.json", folder);
	rc = access(index, R_OK) ? add_shard(folder, "model.safetensors", &opened, fault)
				 : open_index(folder, index, &opened, fault);
	if (rc) {
		checkpoint_close(&opened);
		return -1;
	}
	*checkpoint = opened;
	return 0;
}

void checkpoint_close(struct checkpoint *checkpoint)
{
	for (uint32_t i = 0; i < checkpoint->nr_shards; i++) {
		safetensors_free(&checkpoint->shards[i].tensors);
		file_unmap(&checkpoint->shards[i].file);
	}
	free(checkpoint->shards);
	*checkpoint = (struct checkpoint){0};
}

static const struct tensor *find(const struct checkpoint *checkpoint, const char *name)
{
	for (uint32_t i = 0; i < checkpoint->nr_shards; i++) {
		const struct tensor *tensor =
			safetensors_find(&checkpoint->shards[i].tensors, name);

		if (tensor)
			return tensor;
	}
	return NULL;
}

int checkpoint_rows(const struct checkpoint *checkpoint, const char *name, uint64_t rows,
	uint64_t columns, uint64_t first_row, uint64_t nr_rows, float *out, struct fault *fault)
{
	const struct tensor *tensor = find(checkpoint, name);

	if (!tensor)
		return fault_say(fault, "%s is missing in the checkpoint", name);
	if (tensor->nr_dims < 1 || tensor->nr_dims > 2 || tensor->shape[0] != rows ||
		(tensor->nr_dims == 2 ? tensor->shape[1] : 1) != columns)
		return fault_say(fault,
			"%s has not the shape [%llu, %llu] that config.json implies", name,
			(unsigned long long)rows, (unsigned long long)columns);
	if (tensor_floats(tensor, first_row * columns, nr_rows * columns, out))
		return fault_say(fault, "%s is not stored as BF16, F16 or F32", name);
	return 0;
}
