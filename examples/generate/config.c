/* SPDX-License-Identifier: Apache-2.0 */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "checkpoint.h"
#include "json.h"

/* Bounds every size, so that no product of three of them leaves 64 bits. */
#define MAX_SIZE (1u << 20)

static int read_size(const struct json *json, const char *key, uint32_t *size, struct fault *fault)
{
	uint32_t value = json_member(json, 0, key);
	uint64_t number;

	if (!value || !json_u64(json, value, &number) || number < 1 || number > MAX_SIZE)
		return fault_say(fault, "config.json: %s is no number from 1 to %u", key, MAX_SIZE);
	*size = (uint32_t)number;
	return 0;
}

static int read_sizes(const struct json *json, struct model_config *config, struct fault *fault)
{
	const struct {
		const char *key;
		uint32_t *size;
	} sizes[] = {
		{"vocab_size", &config->vocab},
		{"hidden_size", &config->hidden},
		{"num_hidden_layers", &config->nr_layers},
		{"num_attention_heads", &config->nr_heads},
		{"num_key_value_heads", &config->nr_kv_heads},
		{"head_dim", &config->head_dim},
		{"num_experts", &config->nr_experts},
		{"num_experts_per_tok", &config->topk},
		{"moe_intermediate_size", &config->intermediate},
		{"max_position_embeddings", &config->max_positions},
	};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		if (read_size(json, sizes[i].key, sizes[i].size, fault))
			return -1;
	return 0;
}

static int read_real(const struct json *json, const char *key, float *real, struct fault *fault)
{
	uint32_t value = json_member(json, 0, key);
	double number;

	if (!value || !json_double(json, value, &number) || !(number > 0 && number < 1e30))
		return fault_say(fault, "config.json: %s is no positive number", key);
	*real = (float)number;
	return 0;
}

static bool is_true(const struct json *json, const char *key)
{
	uint32_t value = json_member(json, 0, key);

	return value && json->values[value].type == JSON_TRUE;
}

/* Absent, or null. */
static bool is_unset(const struct json *json, const char *key)
{
	uint32_t value = json_member(json, 0, key);

	return !value || json->values[value].type == JSON_NULL;
}

static int check_support(const struct json *json, struct fault *fault)
{
	uint32_t type = json_member(json, 0, "model_type"),
		 act = json_member(json, 0, "hidden_act");
	uint32_t dense = json_member(json, 0, "mlp_only_layers"),
		 step = json_member(json, 0, "decoder_sparse_step");
	uint64_t number;

	if (!type || !json_string_is(json, type, "qwen3_moe"))
		return fault_say(fault, "config.json: model_type is not \"qwen3_moe\"");
	if (!act || !json_string_is(json, act, "silu"))
		return fault_say(fault, "config.json: hidden_act is not \"silu\"");
	if (dense && json->values[dense].nr_children)
		return fault_say(fault,
			"config.json: mlp_only_layers: layers without experts are not supported");
	if (step && (!json_u64(json, step, &number) || number != 1))
		return fault_say(fault, "config.json: decoder_sparse_step is not 1: layers without "
					"experts are not supported");
	if (is_true(json, "attention_bias") || is_true(json, "use_sliding_window"))
		return fault_say(fault,
			"config.json: attention_bias and use_sliding_window are not supported");
	if (!is_unset(json, "rope_scaling"))
		return fault_say(fault, "config.json: rope_scaling is not supported");
	return 0;
}

static int check_sizes(const struct model_config *config, struct fault *fault)
{
	if (config->topk > config->nr_experts || config->topk > CONFIG_MAX_TOPK)
		return fault_say(fault, "config.json: %u experts per token of %u; at most %d",
			config->topk, config->nr_experts, CONFIG_MAX_TOPK);
	if (config->nr_heads % config->nr_kv_heads || config->head_dim % 2)
		return fault_say(fault, "config.json: %u heads over %u key heads of %u elements",
			config->nr_heads, config->nr_kv_heads, config->head_dim);
	if (config->hidden % 8)
		return fault_say(fault,
			"config.json: hidden_size %u is not a multiple of 8, so that rows of bf16 "
			"would not be of 16 bytes",
			config->hidden);
	return 0;
}

static int read_config(const struct json *json, struct model_config *config, struct fault *fault)
{
	struct model_config found = {.norm_topk = is_true(json, "norm_topk_prob"),
		.tied = is_true(json, "tie_word_embeddings")};

	if (check_support(json, fault) || read_sizes(json, &found, fault) ||
		check_sizes(&found, fault))
		return -1;
	if (read_real(json, "rope_theta", &found.rope_theta, fault) ||
		read_real(json, "rms_norm_eps", &found.norm_eps, fault))
		return -1;
	*config = found;
	return 0;
}

int config_parse(
	const char *text, size_t text_bytes, struct model_config *config, struct fault *fault)
{
	struct json json;
	int rc;

	if (json_parse(text, text_bytes, &json, fault))
		return -1;
	rc = read_config(&json, config, fault);
	json_free(&json);
	return rc;
}

int config_read(const char *folder, struct model_config *config, struct fault *fault)
{
	struct mapped_file file;
	char path[4096];
	int rc;

	if ((size_t)snprintf(path, sizeof(path), "%s/config.json", folder) >= sizeof(path))
		return fault_say(fault, "the model's folder has too long a name");
	if (file_map(path, &file, fault))
		return -1;
	rc = config_parse(file.bytes, file.size, config, fault);
	file_unmap(&file);
	return rc;
}
