/* SPDX-License-Identifier: Apache-2.0 */
/* Settings from the environment. docs/api.md lists them. */
#ifndef TERN_BASE_ENVIRONMENT_H
#define TERN_BASE_ENVIRONMENT_H

/* A whole number, decimal or behind 0x, from least to most. *number stays as it is where the
 * variable is not set; everything else, "" too, is TERN_ERR_INVALID, with name, value and range. */
int environment_number(const char *name, int least, int most, int *number);

#endif
