/* SPDX-License-Identifier: Apache-2.0 */
/* What the readers of config.json and of safetensors take and refuse. */
#include "examples/generate/config.h"
#include "examples/generate/json.h"
#include "examples/generate/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static int parse(const char *text, struct json *json)
{
	struct fault fault;

	return json_parse(text, strlen(text), json, &fault);
}

static void test_takes(void **state)
{
	static const char *const texts[] = {
		"0",
		"-0.5e+3",
		"true",
		" null ",
		"\"\"",
		"[]",
		"{}",
		"[1, [2, {\"a\": []}], \"\\u00e9\\ud83d\\ude00\\n\"]",
		"\"\xc3\xa9\xf0\x9f\x98\x80\"",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		struct json json;

		assert_int_equal(parse(texts[i], &json), 0);
		json_free(&json);
	}
}

static void test_refuses(void **state)
{
	static const char *const texts[] = {
		"",
		" ",
		"01",
		"+1",
		".5",
		"1.",
		"1e",
		"-",
		"tru",
		"truex",
		"nul",
		"'a'",
		"\"",
		"\"\\x\"",
		"\"\\u12g4\"",
		"\"\\ud800\"",
		"\"\\ud800\\u0041\"",
		"\"\\udc00\"",
		"\"\n\"",
		"\"\xff\"",
		"\"\xc0\x80\"",
		"\"\xed\xa0\x80\"",
		"\"\xf4\x90\x80\x80\"",
		"\"\xc3\"",
		"[",
		"]",
		"[1",
		"[1,]",
		"[,1]",
		"[1 2]",
		"{",
		"{\"a\"}",
		"{\"a\":}",
		"{\"a\":1,}",
		"{a:1}",
		"{1:1}",
		"{\"a\":1 \"b\":2}",
		"1 2",
		"{}x",
		"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
	};
	struct json json;

	(void)state;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (!parse(texts[i], &json))
			fail_msg("took %s", texts[i]);
}

static void test_reads(void **state)
{
	struct json json;
	uint64_t number;
	double real;
	char text[16];

	(void)state;
	assert_int_equal(
		parse("{\"n\": 18446744073709551615, \"big\": 18446744073709551616, \"r\": -1.5e2,"
		      " \"\\u0061b\": \"\\u00e9\\\"\\ud83d\\ude00\", \"z\": \"\\u0000\"}",
			&json),
		0);
	assert_true(json_u64(&json, json_member(&json, 0, "n"), &number) && number == UINT64_MAX);
	assert_false(json_u64(&json, json_member(&json, 0, "big"), &number));
	assert_false(json_u64(&json, json_member(&json, 0, "r"), &number));
	assert_true(json_double(&json, json_member(&json, 0, "r"), &real) && real == -150);
	assert_true(json_string(&json, json_member(&json, 0, "ab"), text, sizeof(text)));
	assert_string_equal(text, "\xc3\xa9\"\xf0\x9f\x98\x80");
	assert_false(json_string(&json, json_member(&json, 0, "ab"), text, 7));
	assert_true(json_string(&json, json_member(&json, 0, "ab"), text, 8));
	assert_false(json_string(&json, json_member(&json, 0, "z"), text, sizeof(text)));
	assert_int_equal(json_member(&json, 0, "none"), 0);
	json_free(&json);
}

/* A file with this header and 24 bytes of data. */
static int parse_file(const char *header, struct safetensors *file)
{
	uint8_t bytes[1024] = {0};
	size_t length = strlen(header);

	assert_true(length + 32 <= sizeof(bytes));
	bytes[0] = (uint8_t)length;
	bytes[1] = (uint8_t)(length >> 8);
	memcpy(bytes + 8, header, length);
	return safetensors_parse(bytes, 8 + length + 24, file, NULL);
}

#define TENSOR(name, dtype, shape, begin, end)                                                     \
	"\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin      \
	"," #end "]}"

static void test_tensors(void **state)
{
	struct safetensors file;

	(void)state;
	assert_int_equal(
		parse_file("{\"__metadata__\":{\"format\":\"pt\"}," TENSOR("b", "F32", "[2,2]", 8,
				   24) "," TENSOR("a", "BF16", "[4]", 0, 8) "," TENSOR("empty",
				   "F32", "[0,9]", 8, 8) "," TENSOR("one", "F32", "[]", 24, 24) "}",
			&file),
		-1);
	assert_int_equal(parse_file("{\"__metadata__\":{\"format\":\"pt\"}," TENSOR("b", "F32",
					    "[2,2]", 8, 24) "," TENSOR("a", "BF16", "[4]", 0,
					    8) "," TENSOR("empty", "F32", "[0,9]", 8, 8) "}",
				 &file),
		0);
	assert_int_equal(file.nr_tensors, 3);
	assert_int_equal(safetensors_find(&file, "b")->nr_elements, 4);
	assert_int_equal(safetensors_find(&file, "empty")->nr_elements, 0);
	assert_null(safetensors_find(&file, "c"));
	safetensors_free(&file);
}

static void test_bad_tensors(void **state)
{
	static const char *const headers[] = {
		"{}",
		"[]",
		"{" TENSOR("a", "F32", "[5]", 0, 24) "}",
		"{" TENSOR("a", "F32", "[6]", 0, 25) "}",
		"{" TENSOR("a", "F33", "[6]", 0, 24) "}",
		"{" TENSOR("a", "F32", "[3]", 0, 12) "}",
		"{" TENSOR("a", "F32", "[3]", 0, 12) "," TENSOR("b", "F32", "[4]", 8, 24) "}",
		"{" TENSOR("a", "F32", "[2]", 0, 8) "," TENSOR("b", "F32", "[2]", 16, 24) "}",
		"{" TENSOR("a", "F32", "[3]", 0, 12) "," TENSOR("a", "F32", "[3]", 12, 24) "}",
		"{" TENSOR("a", "F32", "[-6]", 0, 24) "}",
		"{" TENSOR("a", "F32", "[4294967296,4294967296,6]", 0, 24) "}",
		"{" TENSOR("a", "F32", "6", 0, 24) "}",
		"{" TENSOR("a", "F32", "[1,1,1,1,1,1,1,1,6]", 0, 24) "}",
		"{\"a\":{\"dtype\":\"F32\",\"shape\":[6]}}",
		"{\"a\":1}",
	};
	struct safetensors file;

	(void)state;
	for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++)
		if (!parse_file(headers[i], &file))
			fail_msg("took %s", headers[i]);
	assert_int_equal(
		safetensors_parse("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, &file, NULL), -1);
	assert_int_equal(safetensors_parse("\2\0\0\0\0\0\0\0{}", 10, &file, NULL), 0);
	safetensors_free(&file);
	assert_int_equal(safetensors_parse("\2\0\0\0\0\0\0\0{", 9, &file, NULL), -1);
}

#define CONFIG                                                                                     \
	"\"vocab_size\":256,\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4," \
	"\"num_key_value_heads\":2,\"head_dim\":16,"                                               \
	"\"num_experts\":8,\"moe_intermediate_size\":32,\"max_position_embeddings\":128,\"rope_"   \
	"theta\":1e6,\"rms_norm_eps\":1e-06,"                                                      \
	"\"hidden_act\":\"silu\",\"norm_topk_prob\":true,"

static void test_config(void **state)
{
	static const struct {
		const char *text;
		const char *reason; /* NULL: taken */
	} cases[] = {
		{"{" CONFIG "\"model_type\":\"qwen3_moe\",\"num_experts_per_tok\":2}", NULL},
		{"{" CONFIG "\"model_type\":\"qwen3\",\"num_experts_per_tok\":2}", "model_type"},
		{"{" CONFIG "\"model_type\":\"qwen3_moe\",\"num_experts_per_tok\":9}",
			"9 experts per token of 8"},
		{"{" CONFIG "\"model_type\":\"qwen3_moe\",\"num_experts_per_tok\":0}",
			"num_experts_per_tok"},
		{"{" CONFIG "\"model_type\":\"qwen3_moe\"}", "num_experts_per_tok"},
		{"{" CONFIG
		 "\"model_type\":\"qwen3_moe\",\"num_experts_per_tok\":2,\"mlp_only_layers\":[0]}",
			"mlp_only_layers"},
		{"{" CONFIG "\"model_type\":\"qwen3_moe\",\"num_experts_per_tok\":2,\"decoder_"
		 "sparse_step\":2}",
			"decoder_sparse_step"},
		{"{" CONFIG "\"model_type\":\"qwen3_moe\",\"num_experts_per_tok\":2,\"rope_"
		 "scaling\":{\"type\":\"yarn\"}}",
			"rope_scaling"},
		{"[]", "model_type"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct model_config config;
		struct fault fault = {""};
		int rc = config_parse(cases[i].text, strlen(cases[i].text), &config, &fault);

		assert_int_equal(rc, cases[i].reason ? -1 : 0);
		if (cases[i].reason && !strstr(fault.text, cases[i].reason))
			fail_msg("%s: \"%s\" does not say %s", cases[i].text, fault.text,
				cases[i].reason);
		if (!rc)
			assert_true(config.topk == 2 && config.norm_topk && !config.tied &&
				    config.rope_theta == 1e6f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_takes),
		cmocka_unit_test(test_refuses),
		cmocka_unit_test(test_reads),
		cmocka_unit_test(test_tensors),
		cmocka_unit_test(test_bad_tensors),
		cmocka_unit_test(test_config),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
