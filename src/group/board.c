/* SPDX-License-Identifier: Apache-2.0 */
#include "group/board.h"

#include <string.h>

/* The place that the last record is not in. */
void board_show(struct board *board, const struct agreement_record *record)
{
	uint64_t words[RECORD_WORDS], number = record_observe(&board->version) + 1;

	memcpy(words, record, sizeof(words));
	for (size_t i = 0; i < RECORD_WORDS; i++)
		record_store(&board->record[number & 1][i], words[i]);
	record_publish(&board->version, number);
}

bool board_look(const struct board *board, struct agreement_record *record)
{
	uint64_t words[RECORD_WORDS], number = record_observe(&board->version);

	for (size_t i = 0; i < RECORD_WORDS; i++)
		words[i] = record_load(&board->record[number & 1][i]);
	if (!number || !record_is_whole(&board->version, number))
		return false;
	memcpy(record, words, sizeof(words));
	return true;
}

void board_want(struct board *board, uint64_t view)
{
	want_publish(&board->wanted, view);
}
