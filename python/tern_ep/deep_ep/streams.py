# SPDX-License-Identifier: Apache-2.0
"""On which stream a call runs, and what waits for it.

The library wants a slot's halves in order on all streams together. So each call leaves an event behind, and one that goes to another
stream waits for it. While a graph is captured all goes to the current stream: events of other captures, or of none, cannot be
waited for there, and replays are in the order of the caller's streams.
"""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Optional, Sequence

import torch

from ..errors import InvalidError, StateError
from .utils import EventHandle, EventOverlap

Tensors = Sequence[Any]


def check_events(previous_event: Any, async_finish: bool, allocate_on_comm_stream: bool) -> None:
    """As deep_ep has it. Where tensors are allocated shows in nothing else: results are made on the stream that fills them."""
    if allocate_on_comm_stream and (getattr(previous_event, "event", None) is None or not async_finish):
        raise InvalidError("allocate_on_comm_stream takes previous_event and async_finish")


def capturing(on_device: bool) -> bool:
    """Whether what is called now goes into a CUDA graph."""
    return on_device and bool(torch.cuda.is_current_stream_capturing())


def check_capture(on_device: bool, begun_in_graph: bool) -> None:
    """Before a round is ended: each replay of a graph would end one that it has not begun, or leave one open."""
    if capturing(on_device) != begun_in_graph:
        raise StateError("a round that was dispatched inside a captured graph is ended outside of it, or the other way round: combine it where it was dispatched")


class OnCpu:
    """Calls have ended when they return."""

    comm: Any = None

    @property
    def capturing(self) -> bool:
        return False

    def current(self) -> Any:
        return None

    @contextlib.contextmanager
    def call(self, previous_event: Any = None, apart: bool = False, stream: Any = None) -> Iterator[Any]:
        yield None

    def finish(self, stream: Any, apart: bool, inputs: Tensors, outputs: Tensors) -> EventOverlap:
        return EventOverlap(EventHandle() if apart else None)


class OnCuda(OnCpu):
    def __init__(self, device: Any):
        self.comm = torch.cuda.Stream(device, priority=-1)
        self._last: Any = None
        self._done = torch.cuda.Event()

    @property
    def capturing(self) -> bool:
        return capturing(True)

    def current(self) -> Any:
        return torch.cuda.current_stream()

    @contextlib.contextmanager
    def call(self, previous_event: Any = None, apart: bool = False, stream: Any = None) -> Iterator[Any]:
        """Work goes to the stream, whatever the current one does; else apart from the current one, or to that."""
        capturing, current = self.capturing, self.current()
        if stream is None:
            stream = self.comm if apart and not capturing else current
            event: Optional[EventHandle] = getattr(previous_event, "event", None)
            if event is not None and event.event is not None:
                stream.wait_event(event.event)
            elif stream != current:
                stream.wait_stream(current)
        if not capturing and self._last is not None and self._last != stream:
            stream.wait_event(self._done)
        with torch.cuda.stream(stream):
            yield stream
        if capturing:
            self._last = None
        else:
            self._done.record(stream)
            self._last = stream

    def finish(self, stream: Any, apart: bool, inputs: Tensors, outputs: Tensors) -> EventOverlap:
        """Memory of one stream that another uses is not given to others before that one has got so far."""
        current = self.current()
        if stream != current:
            for tensor in inputs:
                if tensor is not None:
                    tensor.record_stream(stream)
            for tensor in outputs:
                if tensor is not None:
                    tensor.record_stream(current)
        if apart:
            return EventOverlap(EventHandle(stream), tuple(inputs) + tuple(outputs))
        return EventOverlap()
