/* SPDX-License-Identifier: Apache-2.0 */
/* A model's folder: config.json, and its tensors in model.safetensors or in the shards that
 * model.safetensors.index.json names. Files are mapped, so that a rank reads only the pages of the
 * tensors that it asks for. */
#ifndef TERN_EXAMPLES_GENERATE_CHECKPOINT_H
#define TERN_EXAMPLES_GENERATE_CHECKPOINT_H

#include "safetensors.h"

struct mapped_file {
	void *bytes;
	size_t size;
};

struct shard {
	struct mapped_file file;
	struct safetensors tensors;
};

struct checkpoint {
	struct shard *shards;
	uint32_t nr_shards;
};

int file_map(const char *path, struct mapped_file *file, struct fault *fault);
void file_unmap(struct mapped_file *file);

/* *checkpoint is set only on success. */
int checkpoint_open(const char *folder, struct checkpoint *checkpoint, struct fault *fault);
void checkpoint_close(struct checkpoint *checkpoint);

/* The rows [first_row, first_row + nr_rows) of the [rows][columns] tensor of this name; a vector
 * has columns 1. Checks the whole shape, and that the type is one of floats. */
int checkpoint_rows(const struct checkpoint *checkpoint, const char *name, uint64_t rows,
	uint64_t columns, uint64_t first_row, uint64_t nr_rows, float *out, struct fault *fault);

#endif
