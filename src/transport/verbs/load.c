/* SPDX-License-Identifier: Apache-2.0 */
/* libibverbs, loaded when a device is asked for: libtern does not depend on it. What is an inline
 * function over a context's table in its header is used as it is; what would need the library at
 * link time is here. */
#include "transport/verbs/verbs.h"

#include <dlfcn.h>
#include <string.h>

#include "base/error.h"

#define LIBRARY "libibverbs.so.1"

static int load_symbol(void *library, const char *name, void *function)
{
	void *symbol = dlsym(library, name);

	if (!symbol)
		return fail(TERN_ERR_UNSUPPORTED, "%s has no %s: Tern needs rdma-core 32 or newer",
			LIBRARY, name);
	memcpy(function, &symbol, sizeof(symbol));
	return 0;
}

/* Never unloaded: providers may leave exit handlers behind. */
int verbs_load(struct verbs_library *l)
{
	const struct {
		const char *name;
		void *function;
	} symbols[] = {
		{"ibv_get_device_list", &l->get_device_list},
		{"ibv_free_device_list", &l->free_device_list},
		{"ibv_get_device_name", &l->get_device_name},
		{"ibv_open_device", &l->open_device},
		{"ibv_close_device", &l->close_device},
		{"ibv_query_device", &l->query_device},
		{"ibv_query_port", &l->query_port},
		{"_ibv_query_gid_ex", &l->query_gid_ex},
		{"ibv_query_pkey", &l->query_pkey},
		{"ibv_alloc_pd", &l->alloc_pd},
		{"ibv_dealloc_pd", &l->dealloc_pd},
		{"ibv_reg_mr", &l->reg_mr},
		{"ibv_reg_mr_iova2", &l->reg_mr_iova2},
		{"ibv_dereg_mr", &l->dereg_mr},
		{"ibv_create_cq", &l->create_cq},
		{"ibv_destroy_cq", &l->destroy_cq},
		{"ibv_create_srq", &l->create_srq},
		{"ibv_destroy_srq", &l->destroy_srq},
		{"ibv_create_qp", &l->create_qp},
		{"ibv_modify_qp", &l->modify_qp},
		{"ibv_destroy_qp", &l->destroy_qp},
		{"ibv_create_ah", &l->create_ah},
		{"ibv_destroy_ah", &l->destroy_ah},
		{"ibv_get_async_event", &l->get_async_event},
		{"ibv_ack_async_event", &l->ack_async_event},
		{"ibv_qp_to_qp_ex", &l->qp_to_qp_ex},
		{"ibv_wc_status_str", &l->wc_status_str},
		{"ibv_event_type_str", &l->event_type_str},
	};
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	int rc = library ? 0
			 : fail(TERN_ERR_UNSUPPORTED, "libibverbs cannot be loaded: %s", dlerror());

	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]) && !rc; i++)
		rc = load_symbol(library, symbols[i].name, symbols[i].function);
	if (!rc && load_symbol(library, "ibv_reg_dmabuf_mr", &l->reg_dmabuf_mr))
		l->reg_dmabuf_mr = NULL;
	return rc;
}
