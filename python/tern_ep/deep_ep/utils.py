# SPDX-License-Identifier: Apache-2.0
"""Events, as deep_ep.utils has them."""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional, Tuple

import torch

from ..errors import StateError

__all__ = ["EventHandle", "EventOverlap"]


def _current() -> Any:
    """torch.cuda.current_stream() looks at the environment first if it is not told the device."""
    return torch.cuda.current_stream(torch.cuda.current_device())


class EventHandle:
    """A point of a CUDA stream, of the current one by default. Where CUDA is not in use calls have ended when they return, and
    nothing is waited for."""

    def __init__(self, stream: Any = None):
        self.event: Any = None
        if torch.cuda.is_initialized():
            self.event = torch.cuda.Event()
            self.event.record(_current() if stream is None else stream)

    def current_stream_wait(self) -> None:
        if self.event is not None:
            _current().wait_event(self.event)


class EventOverlap:
    """What a call returns: its event, None unless async_finish was set, and the tensors that have to live until it is waited for."""

    event: Optional[EventHandle] = None
    extra_tensors: Optional[Tuple[Any, ...]] = None
    hook_after_wait: Optional[Callable[[], Any]] = None
    _release = False

    def __init__(self, event: Optional[EventHandle] = None, extra_tensors: Optional[Tuple[Any, ...]] = None):
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self, release_handle: bool = False) -> None:
        """What is put on the current stream from now on runs behind the call."""
        if self.event is None:
            raise StateError("current_stream_wait: the call was made without async_finish, and there is no event")
        self.event.current_stream_wait()
        hook, self.hook_after_wait = self.hook_after_wait, None
        if hook is not None:
            hook()
        if release_handle:
            self.event = None

    def register_hook_after_wait(self, hook_after_wait: Callable[[], Any]) -> None:
        """Called once, behind the next current_stream_wait."""
        if self.hook_after_wait is not None:
            raise StateError("hook_after_wait: there is one")
        self.hook_after_wait = hook_after_wait

    def __call__(self, release_handle: bool = False) -> "EventOverlap":
        self._release = release_handle
        return self

    def __enter__(self) -> "EventOverlap":
        return self

    def __exit__(self, *_: object) -> None:
        if self.event is not None:
            self.current_stream_wait(self._release)
        self._release = False


no_event: Callable[..., Any] = functools.partial(object.__new__, EventOverlap)
"""What most calls return, without a function of Python's."""
