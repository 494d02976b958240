/* SPDX-License-Identifier: Apache-2.0 */
/* A change of view on a device: kernels have ended, how far they had come, and what they see from
 * the next round on. All of it lies where it was, so that captured graphs go on. */
#include <string.h>

#include "base/error.h"
#include "gpu/cuda/exchange_inside.h"

/* Waits of kernels end when the view is to change, so they do soon. */
int device_exchange_quiesce(const struct device_exchange *x)
{
	int before, rc = device_switch(x->device, &before);

	rc = rc ? rc : cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
	(void)device_switch(before, &(int){0});
	return rc;
}

/* Some warps may have seen all arrivals of a round in which others gave up: it is not complete. */
int device_exchange_epoch(struct device_exchange *x, uint32_t slot, uint32_t *epoch)
{
	struct gpu_state *state = x->slots[slot].dispatch.exchange.state;
	struct gpu_report report;
	int rc = cuda_check(
		cudaMemcpy(epoch, &state->epoch_dispatch, sizeof(*epoch), cudaMemcpyDeviceToHost),
		"cudaMemcpy of an epoch");

	device_exchange_report(x, slot, &report);
	if (!rc && report.reason && report.reason != GPU_LOST_EXPERTS)
		*epoch = report.epoch_expected;
	return rc;
}

static int write_gone(struct device_exchange *x, const uint8_t *alive)
{
	struct gpu_view view = {0};

	for (uint32_t r = 0; r < x->nr_ranks; r++)
		if (!alive[r])
			view.gone[view.nr_gone++] = r;
	return cuda_check(cudaMemcpy(x->view, &view, sizeof(view), cudaMemcpyHostToDevice),
		"cudaMemcpy of a view");
}

/* As a slot begins. */
static int write_slot(
	struct device_exchange *x, uint32_t slot, const struct device_view *view, bool lost)
{
	struct gpu_state state = {
		.epoch_dispatch = view->epochs[slot], .failed = lost, .pane = view->pane};
	struct gpu_report *report = &x->reports[slot].report;

	memset(report, 0, sizeof(*report));
	report->reason = lost ? GPU_LOST_EXPERTS : GPU_WAIT_NONE;
	return cuda_check(cudaMemcpy(x->slots[slot].dispatch.exchange.state, &state, sizeof(state),
				  cudaMemcpyHostToDevice),
		"cudaMemcpy of a slot's state");
}

int device_exchange_resume(struct device_exchange *x, const struct device_view *view)
{
	int before, rc = device_switch(x->device, &before);

	rc = rc ? rc : tables_write(x, view->placement);
	rc = rc ? rc : write_gone(x, view->alive);
	for (uint32_t slot = 0; slot < x->config.nr_slots && !rc; slot++)
		rc = write_slot(x, slot, view, view->placement->nr_lost != 0);
	(void)device_switch(before, &(int){0});
	return rc;
}
