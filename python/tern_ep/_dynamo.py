# SPDX-License-Identifier: Apache-2.0
"""torch.compile does not look into plain calls: a graph ends before them and another begins behind them. It cannot trace foreign
functions, and older versions fail at ctypes and locks. Only marks are set; torch._dynamo, which takes a second to import, is not."""

from __future__ import annotations

import types
from typing import Any, Iterator


def _functions(owner: Any) -> Iterator[types.FunctionType]:
    for value in list(vars(owner).values()):
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        if isinstance(value, property):
            value = value.fget
        if isinstance(value, types.FunctionType):
            yield value
        elif isinstance(value, type) and value.__module__ == getattr(owner, "__name__", None):
            yield from _functions(value)


def _skip(code: Any) -> None:
    """Nor is the code compiled by itself, or what it calls."""
    from torch._C._dynamo import eval_frame

    strategy, action = getattr(eval_frame, "_FrameExecStrategy", None), getattr(eval_frame, "_FrameAction", None)
    if strategy is not None and action is not None:
        eval_frame.set_code_exec_strategy(code, strategy(action.SKIP, action.SKIP))
    elif hasattr(eval_frame, "skip_code"):
        eval_frame.skip_code(code)


def leave_alone(*modules: types.ModuleType) -> None:
    """All that these modules define."""
    for module in modules:
        for function in _functions(module):
            if function.__module__ == module.__name__:
                function._torchdynamo_disable = True  # type: ignore[attr-defined]
                _skip(function.__code__)
