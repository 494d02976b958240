# SPDX-License-Identifier: Apache-2.0
"""deep_ep, V1, over Tern: what vLLM, SGLang and Megatron call `import deep_ep` for.

    import tern_ep.deep_ep
    tern_ep.deep_ep.install()           # before anything imports deep_ep

or the distribution tern-ep-deepep, whose deep_ep is this. The guide is docs/deep_ep.md.
"""

from __future__ import annotations

import sys
import types
from typing import Any

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


def install(replace: bool = False) -> None:
    """Makes `import deep_ep` this. Another deep_ep that was imported before is in use already, which is an error; with replace what
    modules have taken of it becomes ours, and objects that were made of it stay what they are."""
    here = sys.modules[__name__]
    there = sys.modules.get("deep_ep")
    if there is not None and there is not here and not getattr(there, "__tern__", False):
        if not replace:
            raise StateError(f"deep_ep is imported already, from {getattr(there, '__file__', None)}: call install() before")
        _replace(there, here)
    sys.modules["deep_ep"] = here
    sys.modules["deep_ep.utils"] = utils


def _replace(there: Any, here: Any) -> None:
    ours = {id(there): here}
    for name in __all__:
        theirs = getattr(there, name, None) or getattr(getattr(there, "utils", None), name, None)
        if isinstance(theirs, (type, types.ModuleType)):
            ours[id(theirs)] = getattr(here, name)
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if names is None or (getattr(module, "__name__", None) or "").split(".")[0] == "deep_ep":
            continue
        for name, value in list(names.items()):
            if id(value) in ours:
                names[name] = ours[id(value)]
