# SPDX-License-Identifier: Apache-2.0
"""deep_ep, V1, over Tern: what vLLM, SGLang and Megatron call `import deep_ep` for.

    import tern_ep.deep_ep
    tern_ep.deep_ep.install()           # before anything imports deep_ep

or the distribution tern-ep-deepep, whose deep_ep is this. The guide is docs/deep_ep.md.
"""

from __future__ import annotations

import sys

import torch

from ..errors import StateError
from . import utils
from .buffer import Buffer
from .config import Config
from .utils import EventHandle, EventOverlap

__all__ = ["Buffer", "Config", "EventHandle", "EventOverlap", "install", "topk_idx_t", "utils"]

topk_idx_t = torch.int64
__version__ = "1.2.1"
"""Of the deep_ep whose calls these are."""


def install() -> None:
    """Makes `import deep_ep` this. Another deep_ep that was imported before is used already, which is an error."""
    here = sys.modules[__name__]
    there = sys.modules.get("deep_ep")
    if there is not None and there is not here and not getattr(there, "__tern__", False):
        raise StateError(f"deep_ep is imported already, from {getattr(there, '__file__', None)}: call install() before")
    sys.modules["deep_ep"] = here
    sys.modules["deep_ep.utils"] = utils
