/* SPDX-License-Identifier: Apache-2.0 */
/* Which network leads from each rank to each other: worked out by every rank for itself, from what
 * all have said, so it needs no further word.
 *
 *   transport = "verbs+ofi"  ── network_list_parse ──►  networks that this rank would open
 *                            ── network_list_offer ──►  offers: can they be used, and what do they reach ──(all
 * ranks')── offers_plan ──► the engine's setup
 *
 * A pair of ranks takes the first network in the list of the lower of the two that both offer and
 * can use, and that reaches the same at both. */
#ifndef TERN_ENGINE_OFFERS_H
#define TERN_ENGINE_OFFERS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"

#define OFFER_NAME ENGINE_NETWORK_NAME
#define OFFER_WHY 320 /* room for offers_why */

/* What a rank says of one network. Plain bytes, gathered. */
struct offer {
	char name[OFFER_NAME]; /* "verbs", "ofi:tcp;ofi_rxm": without devices, which may differ */
	char reaches[64]; /* "Ethernet", or a machine: ranks that have different texts here cannot
			     reach each other; "": whatever there is */
	char cause[128];  /* why it cannot be used; "": it can */
	uint32_t nr_nics;
};

/* In order of preference. */
struct offers {
	uint32_t nr;
	struct offer each[TERN_MAX_NICS];
};

/* ---- this rank's ----------------------------------------------------------------------------- */

struct network_list {
	uint32_t nr;
	struct engine_network each[TERN_MAX_NICS];
	char name[TERN_MAX_NICS][OFFER_NAME];
	char *texts; /* what they point to; the owner of the list frees it */
};

/* "verbs@mlx5_0,mlx5_1+ofi:tcp;ofi_rxm": networks with + between them. Those without @ get config's
 * nr_nics and devices. */
int network_list_parse(const struct tern_engine_config *config, struct network_list *list);

/* For tests: one more transport that settings may name. Set before any engine is made. */
extern const struct transport_ops *network_list_extra;

/* Looks for a port (verbs) or tries to open them. The last one is a last resort and not tried: if
 * it cannot be opened, that is an error. */
void network_list_offer(const struct network_list *list, struct offers *mine);

/* ---- all ranks' ------------------------------------------------------------------------------ */

/* The networks by which any two ranks reach each other, in the order of the first pair that needs
 * one; the same on all ranks. */
struct network_plan {
	uint32_t nr;
	struct {
		const struct offer *offer;
		uint32_t by; /* the rank whose offer it is */
		bool here;   /* it leads from this rank to one at least */
	} each[TERN_MAX_NICS];
	uint8_t *network_of; /* [nr_ranks], the caller's: which of them leads from this rank to each
			      */
};

/* What a rank has said is followed only if it can have been said: TERN_ERR_PROTOCOL. Ends all
 * texts. */
int offers_check(struct offers *all, uint32_t nr_ranks);

/* The lower rank's offer that a pair agrees on, or NULL. */
const struct offer *offers_choose(const struct offers *lower, const struct offers *higher);

/* TERN_ERR_UNSUPPORTED: nothing connects two ranks, and the text names both with what they have.
 * TERN_ERR_MISMATCH: of a network's NICs there are different numbers, or too many in all. All ranks
 * come to the same result. */
int offers_plan(
	const struct offers *all, uint32_t nr_ranks, uint32_t self, struct network_plan *plan);

/* Why this network leads from self to the peer: "both offer it", "as verbs cannot be used there:
 * ...". At most OFFER_WHY bytes; the same words for peers of which the same is true. */
void offers_why(const struct offers *all, uint32_t self, uint32_t peer, char *text);

#endif
