# SPDX-License-Identifier: Apache-2.0
"""deep_ep.Config: how many SMs kernels take. The rest is about deep_ep's buffers."""

from __future__ import annotations

from ..errors import InvalidError


class Config:
    """num_sms: the most SMs that a call takes on a GPU. Sizes of chunks mean nothing here, and no buffer has to be made for them."""

    def __init__(
        self,
        num_sms: int = 20,
        num_max_nvl_chunked_send_tokens: int = 6,
        num_max_nvl_chunked_recv_tokens: int = 256,
        num_max_rdma_chunked_send_tokens: int = 6,
        num_max_rdma_chunked_recv_tokens: int = 256,
    ):
        if num_sms < 0:
            raise InvalidError(f"num_sms is {num_sms}")
        self.num_sms = num_sms
        self.num_max_nvl_chunked_send_tokens = num_max_nvl_chunked_send_tokens
        self.num_max_nvl_chunked_recv_tokens = num_max_nvl_chunked_recv_tokens
        self.num_max_rdma_chunked_send_tokens = num_max_rdma_chunked_send_tokens
        self.num_max_rdma_chunked_recv_tokens = num_max_rdma_chunked_recv_tokens

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """0: exchanges take their memory when their shape is known."""
        return 0

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """0, likewise."""
        return 0
