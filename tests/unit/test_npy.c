/* SPDX-License-Identifier: Apache-2.0 */
#include "testkit/npy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

/* A version 1 file with this header and nr_bytes of data, parsed. */
static int parse(const char *header, size_t nr_bytes, struct npy *npy, struct reason *why)
{
	char file[512] = "\x93NUMPY\1\0";
	size_t length = strlen(header);

	file[8] = (char)length;
	memcpy(file + 10, header, length);
	return npy_parse(file, 10 + length + nr_bytes, npy, why);
}

static void test_headers(void **state)
{
	struct npy npy;

	(void)state;
	assert_int_equal(parse("{'descr': '<i4', 'fortran_order': False, 'shape': (3, 2), }   \n",
				 24, &npy, NULL),
		0);
	assert_int_equal(npy.type, NPY_INT32);
	assert_int_equal(npy.nr_dims, 2);
	assert_int_equal(npy.shape[0], 3);
	assert_int_equal(npy.shape[1], 2);
	assert_int_equal(npy.data_bytes, 24);
	assert_int_equal(
		parse("{'shape':(3,),'fortran_order':False,'descr':'<f4'}", 12, &npy, NULL), 0);
	assert_int_equal(npy.nr_dims, 1);
	assert_int_equal(
		parse("{'descr': '<i8', 'fortran_order': False, 'shape': (0, 8)}", 0, &npy, NULL),
		0);
}

static void test_refusals(void **state)
{
	static const struct {
		const char *header;
		size_t nr_bytes;
		const char *reason;
	} cases[] = {
		{"{'descr': '<i2', 'fortran_order': False, 'shape': (3, 2)}", 12, "type"},
		{"{'descr': '>i4', 'fortran_order': False, 'shape': (3, 2)}", 24, "type"},
		{"{'descr': '<i4', 'fortran_order': True, 'shape': (3, 2)}", 24, "C order"},
		{"{'descr': '<i4', 'fortran_order': False, 'shape': (3, 2)}", 23,
			"before its last"},
		{"{'descr': '<i4', 'fortran_order': False, 'shape': (3, 2)}", 25, "beyond"},
		{"{'descr': '<i4', 'fortran_order': False, 'shape': (3, 2, 1)}", 24, "more than 2"},
		{"{'descr': '<i4', 'fortran_order': False, 'shape': ()}", 4, "1 or 2"},
		{"{'descr': '<i4', 'fortran_order': False, 'shape': (3)}", 12, "1 or 2"},
		{"{'descr': '<i4', 'fortran_order': False, 'shape': (3 2)}", 24, "comma"},
		{"{'descr': '<i4', 'fortran_order': False, 'shape': (-3, 2)}", 24, "numbers"},
		{"{'descr': '<i4', 'fortran_order': False, 'shape': (99999999999, 2)}", 24, "2^32"},
		{"{'descr': '<i4', 'fortran_order': False, 'shape': (42949672950, 42949672950)}",
			24, "before its last"},
		{"{'descr': '<i4', 'fortran_order': False}", 24, "lacks"},
		{"{'descr': '<i4', 'descr': '<i4', 'fortran_order': False, 'shape': (6,)}", 24,
			"repeated"},
		{"{'descr': '<i4' 'fortran_order': False, 'shape': (6,)}", 24, "comma"},
		{"{'descr' '<i4'}", 24, "colon"},
		{"{'descr': '<i4', 'fortran_order': False, 'shape': (6,)} x", 24, "goes on"},
		{"{'descr': '<i4', 'fortran_order': False, 'shape': (6,", 24, "numbers"},
		{"[1]", 0, "dict"},
	};
	struct npy npy;
	struct reason why;
	unsigned int i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(parse(cases[i].header, cases[i].nr_bytes, &npy, &why), -1);
		if (!strstr(why.text, cases[i].reason))
			fail_msg("%s: refused as '%s'", cases[i].header, why.text);
	}
}

static void test_not_npy(void **state)
{
	struct npy npy;

	(void)state;
	assert_int_equal(npy_parse("", 0, &npy, NULL), -1);
	assert_int_equal(npy_parse("\x93NUMPY\3\0\0\0\0\0", 12, &npy, NULL), -1);
	assert_int_equal(npy_parse("\x93NUMPY\2\0\0\0\0", 11, &npy, NULL), -1);
	assert_int_equal(npy_parse("\x93NUMPY\1\0\377\377{}", 12, &npy, NULL), -1);
	assert_int_equal(npy_parse("\x93NUMPY\2\0\377\377\377\377{}", 14, &npy, NULL), -1);
}

static void test_write_and_read(void **state)
{
	static const float values[] = {1, 2, 3, 4, 5, 6};
	struct npy npy = {NPY_FLOAT32, 2, {2, 3}, values, 0}, back;
	char path[] = "/tmp/tern-npy-XXXXXX";
	void *bytes;
	int fd = mkstemp(path);

	(void)state;
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(npy_write(path, &npy, NULL), 0);
	assert_int_equal(npy_read(path, &bytes, &back, NULL), 0);
	unlink(path);
	assert_int_equal((char *)back.data - (char *)bytes, 128);
	assert_int_equal(back.data_bytes, sizeof(values));
	assert_memory_equal(back.data, values, sizeof(values));
	free(bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_headers),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_not_npy),
		cmocka_unit_test(test_write_and_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
