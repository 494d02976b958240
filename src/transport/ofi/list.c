/* SPDX-License-Identifier: Apache-2.0 */
/* What libfabric offers here. */
#include "base/error.h"
#include "transport/presence.h"
#include "transport/ofi/ofi.h"

int ofi_list(void (*each)(void *ctx, const char *provider, const char *domain), void *ctx)
{
	struct ofi_library l;
	struct fi_info *hints, *list = NULL;
	int rc = ofi_load(&l);

	if (rc)
		return rc;
	hints = l.dupinfo(NULL);
	if (!hints)
		return fail(TERN_ERR_NOMEM, "no memory to ask libfabric");
	hints->caps = FI_MSG | FI_RMA;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode =
		FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR | FI_MR_ENDPOINT;
	rc = l.getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &list);
	l.freeinfo(hints);
	if (rc)
		return fail(TERN_ERR_UNSUPPORTED,
			"libfabric has no provider with reliable datagrams and one-sided writes: "
			"%s",
			l.strerror(-rc));
	for (struct fi_info *one = list; one; one = one->next)
		each(ctx, one->fabric_attr->prov_name,
			one->domain_attr->name ? one->domain_attr->name : "");
	l.freeinfo(list);
	return 0;
}
