# SPDX-License-Identifier: Apache-2.0
"""deep_ep.Buffer, V1: its methods, arguments, results and handles, over exchanges of Tern."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Tuple

import torch

from ..errors import InvalidError, StateError, UnsupportedError
from .config import Config
from .exchanges import Exchanges, not_compiled
from .low_latency import LowLatency
from .normal import Normal
from .streams import check_events
from .utils import EventHandle, EventOverlap, no_event


_NOT_BOTH = "async_finish and return_recv_hook exclude each other"


class Buffer:
    """What ranks of a group dispatch and combine with. Made by all of them.

    group: of torch.distributed, any backend; or comm, an mpi4py communicator. Arguments about buffers and queue pairs mean nothing
    here: docs/deep_ep.md.
    """

    num_sms: int = 20

    def __init__(
        self,
        group: Any,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        use_fabric: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
    ):
        if group is not None:
            self.rank, self.group_size, self.group = group.rank(), group.size(), group

            def allgather(mine: bytes) -> List[bytes]:
                parts: List[Any] = [None] * self.group_size
                torch.distributed.all_gather_object(parts, mine, group)
                return parts

        elif comm is not None:
            self.rank, self.group_size, self.group = comm.Get_rank(), comm.Get_size(), comm
            allgather = comm.allgather
        else:
            raise InvalidError("group: a process group or, as comm, a communicator of mpi4py is needed")
        self.num_nvl_bytes = num_nvl_bytes
        self.num_rdma_bytes = num_rdma_bytes
        self.low_latency_mode = low_latency_mode
        self.explicitly_destroy = explicitly_destroy
        self.enable_shrink = enable_shrink
        not_compiled()
        self._exchanges: Optional[Exchanges] = Exchanges(self.rank, self.group_size, allgather)
        self._normal = Normal(self._exchanges)
        self._low_latency = LowLatency(self._exchanges, enable_shrink)
        self._ready = self._low_latency if low_latency_mode else None
        """Until the buffer is destroyed."""

    def destroy(self) -> None:
        """Leaves. Peers that wait for this rank learn of it at once."""
        if not self.explicitly_destroy:
            raise StateError("destroy: the buffer was made without explicitly_destroy")
        made, self._exchanges, self._ready = self._exchanges, None, None
        if made is not None:
            made.close()

    @property
    def runtime(self) -> Any:
        """None once destroyed."""
        return self._exchanges

    def _there(self) -> Exchanges:
        if self._exchanges is None:
            raise StateError("the buffer is destroyed")
        return self._exchanges

    # ---- settings ----

    @staticmethod
    def is_sm90_compiled() -> bool:
        """FP8 is there on every device."""
        return True

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """The most SMs that normal mode takes on a GPU where no config says another number."""
        if new_num_sms < 0 or new_num_sms % 2:
            raise InvalidError(f"new_num_sms is {new_num_sms}; it has to be even")
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        """The current stream as it is now, for previous_event."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        return Config(Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        return Config(Buffer.num_sms)

    @staticmethod
    def get_low_latency_rdma_size_hint(num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int) -> int:
        """0: exchanges take their memory when their shape is known."""
        return 0

    def get_comm_stream(self) -> Any:
        """The stream of calls with async_finish."""
        made = self._there()
        if not torch.cuda.is_initialized():
            return torch.cpu.current_stream()
        return made.streams(torch.device("cuda", torch.cuda.current_device())).comm

    def get_local_buffer_tensor(self, dtype: Any, size: Any = None, offset: int = 0, use_rdma_buffer: bool = False) -> Any:
        raise UnsupportedError("get_local_buffer_tensor: there is no buffer of which callers could have a part")

    # ---- normal mode ----

    def get_dispatch_layout(
        self,
        topk_idx: Any,
        num_experts: int,
        previous_event: Optional[EventOverlap] = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Tuple[Any, Any, Any, Any, EventOverlap]:
        """(num_tokens_per_rank, num_tokens_per_rdma_rank, num_tokens_per_expert, is_token_in_rank, event)."""
        check_events(previous_event, async_finish, allocate_on_comm_stream)
        streams = self._there().streams(topk_idx.device)
        with streams.call(previous_event, async_finish) as call:
            found = self._normal.layout(topk_idx, num_experts)
        return (*found, no_event() if call.plain else call.finish((topk_idx,), found))

    def dispatch(
        self,
        x: Any,
        handle: Optional[Tuple[Any, ...]] = None,
        num_tokens_per_rank: Any = None,
        num_tokens_per_rdma_rank: Any = None,
        is_token_in_rank: Any = None,
        num_tokens_per_expert: Any = None,
        topk_idx: Any = None,
        topk_weights: Any = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Optional[Config] = None,
        previous_event: Optional[EventOverlap] = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Tuple[Any, Any, Any, Any, Any, EventOverlap]:
        """(recv_x, recv_topk_idx, recv_topk_weights, num_recv_tokens_per_expert_list, handle, event). With a handle rows go where its
        dispatch's went, and the four in the middle are None."""
        check_events(previous_event, async_finish, allocate_on_comm_stream)
        rows = x if isinstance(x, tuple) else (x,)
        streams = self._there().streams(rows[0].device)
        sms = self.num_sms if config is None else config.num_sms
        if handle is not None and (topk_idx is not None or topk_weights is not None):
            raise InvalidError("topk_idx and topk_weights: rows go where handle's went")
        with streams.call(previous_event, async_finish) as call:
            if handle is not None:
                again = self._normal.dispatch_again(x, handle, sms, call)
                found: Tuple[Any, ...] = (again, None, None, None, None)
            else:
                found = self._normal.dispatch(
                    x,
                    topk_idx,
                    topk_weights,
                    num_tokens_per_rank,
                    is_token_in_rank,
                    num_tokens_per_expert,
                    expert_alignment,
                    num_worst_tokens,
                    sms,
                    call,
                )
        if call.plain:
            return (*found, no_event())  # type: ignore[return-value]
        taken = found[0] if isinstance(found[0], tuple) else (found[0],)
        event = call.finish(
            (*rows, num_tokens_per_rank, is_token_in_rank, num_tokens_per_expert, topk_idx, topk_weights),
            (*taken, found[1], found[2]) if found[4] is None else (*taken, found[1], found[2], *found[4].tensors()),
        )
        return found[0], found[1], found[2], found[3], found[4], event

    def combine(
        self,
        x: Any,
        handle: Tuple[Any, ...],
        topk_weights: Any = None,
        bias: Any = None,
        config: Optional[Config] = None,
        previous_event: Optional[EventOverlap] = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Tuple[Any, Any, EventOverlap]:
        """(sums of rows, sums of topk_weights, event). Nothing is weighted."""
        check_events(previous_event, async_finish, allocate_on_comm_stream)
        biases = () if bias is None else self._biases(bias)
        streams = self._there().streams(x.device)
        with streams.call(previous_event, async_finish) as call:
            out, weights = self._normal.combine(x, handle, topk_weights, biases, self.num_sms if config is None else config.num_sms)
        return out, weights, no_event() if call.plain else call.finish((x, topk_weights, *biases), (out, weights))

    @staticmethod
    def _biases(bias: Any) -> Tuple[Any, ...]:
        biases = bias if isinstance(bias, tuple) else (bias,)
        if len(biases) > 2:
            raise InvalidError(f"bias is a tuple of {len(biases)}; one or two are possible")
        return tuple(one for one in biases if one is not None)

    def internode_dispatch(
        self,
        x: Any,
        handle: Optional[Tuple[Any, ...]] = None,
        num_tokens_per_rank: Any = None,
        num_tokens_per_rdma_rank: Any = None,
        is_token_in_rank: Any = None,
        num_tokens_per_expert: Any = None,
        topk_idx: Any = None,
        topk_weights: Any = None,
        expert_alignment: int = 1,
        config: Optional[Config] = None,
        previous_event: Optional[EventOverlap] = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> Tuple[Any, Any, Any, Any, Any, EventOverlap]:
        """dispatch, which goes over every network."""
        return self.dispatch(
            x,
            handle,
            num_tokens_per_rank,
            num_tokens_per_rdma_rank,
            is_token_in_rank,
            num_tokens_per_expert,
            topk_idx,
            topk_weights,
            expert_alignment,
            0,
            config,
            previous_event,
            async_finish,
            allocate_on_comm_stream,
        )

    internode_combine = combine

    # ---- low-latency mode ----

    def _is_low_latency(self) -> LowLatency:
        if self._ready is None:
            self._there()
            raise StateError("low_latency_mode: the buffer was made without it")
        return self._ready

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Nothing has to be cleaned: modes do not share memory."""
        self._is_low_latency()

    def low_latency_dispatch(
        self,
        x: Any,
        topk_idx: Any,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: Any = None,
        dispatch_wait_recv_cost_stats: Any = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
    ) -> Tuple[Any, Any, Tuple[Any, ...], EventOverlap, Optional[Callable[[], None]]]:
        """(recv_x, or recv_x and its scales; counts; handle; event; hook)."""
        low_latency = self._ready or self._is_low_latency()
        totals, waited = cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats
        kind = num_max_dispatch_tokens_per_rank, num_experts, use_fp8, round_scale, use_ue8m0
        if kind in low_latency.plain and totals is None and waited is None and not (async_finish or return_recv_hook):
            found = low_latency.plain[kind].dispatch(x, topk_idx)
            if found is not None:
                return found  # type: ignore[return-value]
        if async_finish and return_recv_hook:
            raise InvalidError(_NOT_BOTH)
        lane, x, topk_idx = low_latency.lane(x, topk_idx, kind)
        with lane.streams.call(None, async_finish) as call:
            results, handle, hook = low_latency.dispatch(lane, x, topk_idx, kind, totals, waited, return_recv_hook)
        event = call.finish((x, topk_idx, totals, waited), results.tensors())
        return results.recv_x, results.counts, handle, event, None if hook is None else self._later(lane.streams, call.stream, hook)

    def low_latency_combine(
        self,
        x: Any,
        topk_idx: Any,
        topk_weights: Any,
        handle: Tuple[Any, ...],
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: Any = None,
        combine_wait_recv_cost_stats: Any = None,
    ) -> Tuple[Any, EventOverlap, Optional[Callable[[], None]]]:
        """(weighted sums, event, hook)."""
        low_latency = self._ready or self._is_low_latency()
        there = low_latency.round(handle)
        if combine_wait_recv_cost_stats is not None:
            raise UnsupportedError("combine_wait_recv_cost_stats: for which rank a combine waits is not measured")
        if not (zero_copy or async_finish or return_recv_hook):
            made = there.lane.combine(there, x, topk_idx, topk_weights, out)
            if made is not None:
                return made  # type: ignore[no-any-return]
        if async_finish and return_recv_hook:
            raise InvalidError(_NOT_BOTH)
        streams = there.lane.streams
        with streams.call(None, async_finish) as call:
            found, hook = low_latency.combine(there, x, topk_idx, topk_weights, zero_copy, return_recv_hook, out)
        event = call.finish((x, topk_idx, topk_weights, out), (found,))
        return found, event, None if hook is None else self._later(streams, call.stream, hook)

    def _later(self, streams: Any, stream: Any, hook: Callable[[], None]) -> Callable[[], None]:
        """Receives on the stream that sent."""

        def receive() -> None:
            with streams.call(None, False, stream):
                hook()

        return receive

    def get_next_low_latency_combine_buffer(self, handle: Any) -> Any:
        """[L][R * T][H], for results that a combine with zero_copy takes from there."""
        self._is_low_latency()
        return self._low_latency.combine_buffer(handle)

    def _shrinks(self) -> None:
        self._is_low_latency()
        if not self.enable_shrink:
            raise StateError("enable_shrink: the buffer was made without it")

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """From here on this rank neither sends to that one nor waits for it. A mask is for good, and on the CPU."""
        self._shrinks()
        if not 0 <= rank_to_mask < self.group_size:
            raise InvalidError(f"rank_to_mask is {rank_to_mask} of {self.group_size}")
        if mask:
            self._low_latency.mask(rank_to_mask)
        elif rank_to_mask in self._low_latency.masked:
            raise UnsupportedError(f"mask: rank {rank_to_mask} is masked, and no more in step with the others")

    def low_latency_query_mask_buffer(self, mask_status: Any) -> None:
        """Sets mask_status[r]: 1 if rank r is masked, else 0."""
        self._shrinks()
        if mask_status.numel() != self.group_size or mask_status.dtype != torch.int32:
            raise InvalidError(f"mask_status is {mask_status.dtype}{list(mask_status.shape)}; it has to be int32[{self.group_size}]")
        masked = [int(rank in self._low_latency.masked) for rank in range(self.group_size)]
        mask_status.view(-1).copy_(torch.tensor(masked, dtype=torch.int32))

    def low_latency_clean_mask_buffer(self) -> None:
        """Where a rank is masked, this would be to take it back."""
        self._shrinks()
        if self._low_latency.masked:
            raise UnsupportedError(f"low_latency_clean_mask_buffer: ranks {sorted(self._low_latency.masked)} are no more in step with the others")
