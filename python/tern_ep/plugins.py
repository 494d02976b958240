# SPDX-License-Identifier: Apache-2.0
"""What vLLM and SGLang load by entry points, in each of their processes: where Tern is chosen, `import deep_ep` is Tern's from then
on, also for modules that have imported another one already.

Chosen is it by TERN_DEEP_EP=1, or by installing tern-ep-deepep; TERN_DEEP_EP=0 leaves everything as it is.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys


def chosen() -> bool:
    said = os.environ.get("TERN_DEEP_EP")
    if said is not None:
        return said not in ("", "0")
    try:
        importlib.metadata.distribution("tern-ep-deepep")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def vllm() -> None:
    """vllm.general_plugins."""
    if not chosen():
        return
    from . import deep_ep

    deep_ep.install(replace=True)
    known = sys.modules.get("vllm.utils.import_utils")
    forget = getattr(getattr(known, "_has_module", None), "cache_clear", None)
    if forget is not None:
        forget()  # whether there is a deep_ep was perhaps asked before


def sglang() -> None:
    """sglang.srt.plugins."""
    if not chosen():
        return
    from . import deep_ep

    deep_ep.install(replace=True)
    dispatcher = sys.modules.get("sglang.srt.layers.moe.token_dispatcher.deepep")
    if dispatcher is not None and not getattr(dispatcher, "use_deepep", True):  # it has tried another, which failed
        for name, value in dict(Buffer=deep_ep.Buffer, Config=deep_ep.Config, use_deepep=True, _deepep_import_error=None).items():
            setattr(dispatcher, name, value)
