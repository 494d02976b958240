# SPDX-License-Identifier: Apache-2.0
"""On which stream a call runs, and what waits for it.

The library wants a slot's halves in order on all streams together. So each call leaves an event behind, and one that goes to another
stream waits for it. While a graph is captured all goes to the current stream: events of other captures, or of none, cannot be
waited for there, and replays are in the order of the caller's streams.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

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
    return on_device and bool(torch._C._cuda_isCurrentStreamCapturing())


def check_capture(captured: bool, begun_in_graph: bool) -> None:
    """Before a round is ended: each replay of a graph would end one that it has not begun, or leave one open."""
    if captured != begun_in_graph:
        raise StateError("a round that was dispatched inside a captured graph is ended outside of it, or the other way round: combine it where it was dispatched")


class Call:
    """What runs inside belongs to one call, of which `finish` makes the event. On the CPU it has ended then."""

    __slots__ = ("stream", "current", "plain", "_apart")

    def __init__(self, stream: Any, current: Any, apart: bool, plain: bool):
        self.stream, self.current, self._apart = stream, current, apart
        self.plain = plain
        """finish() has nothing to do, whatever it is passed."""

    def __enter__(self) -> "Call":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait_for(self, stream: Any) -> None:
        """For what is on that stream, and on the caller's, so far."""

    def finish(self, inputs: Tensors, outputs: Tensors) -> EventOverlap:
        return EventOverlap(EventHandle() if self._apart else None)


class OnCpu:
    comm: Any = None
    _calls = Call(None, None, False, True), Call(None, None, True, False)

    def call(self, previous_event: Any = None, apart: bool = False, stream: Any = None) -> Call:
        return self._calls[bool(apart)]


class CallOnCuda(Call):
    __slots__ = ("_on", "_captured")

    def __init__(self, on: "OnCuda", stream: Any, current: Any, apart: bool, captured: bool, plain: bool = False):
        super().__init__(stream, current, apart, plain)
        self._on, self._captured = on, captured

    def __enter__(self) -> Call:
        if self.stream is not self.current:
            torch.cuda.set_stream(self.stream)
        return self

    def __exit__(self, *_: object) -> None:
        if self.stream is not self.current:
            torch.cuda.set_stream(self.current)
        self._on.leave(self.stream, self._captured)

    def wait_for(self, stream: Any) -> None:
        for other in (stream, None if self.current is stream else self.current):
            if other is not None and other is not self.stream and other != self.stream:
                self.stream.wait_stream(other)

    def finish(self, inputs: Tensors, outputs: Tensors) -> EventOverlap:
        """Memory of one stream that another uses is not given to others before that one has got so far."""
        stream, current = self.stream, self.current
        if stream is not current:
            for tensor in inputs:
                if tensor is not None:
                    tensor.record_stream(stream)
            for tensor in outputs:
                if tensor is not None:
                    tensor.record_stream(current)
        if self._apart:
            return EventOverlap(EventHandle(stream), tuple(inputs) + tuple(outputs))
        return EventOverlap()


class CallAsBefore(CallOnCuda):
    """On the current stream, as the last one was, while no call has gone to another: nothing is waited for, and nothing left behind."""

    __slots__ = ()

    def __exit__(self, *_: object) -> None:
        pass

    def finish(self, inputs: Tensors, outputs: Tensors) -> EventOverlap:
        return EventOverlap()


class OnCuda(OnCpu):
    """torch.cuda's current_stream and stream look at the environment on each call, which takes longer than the rest of a call: the
    current stream is known by its address, and none is made current that is. Nor is an event left behind each call before a call has
    gone to another stream than the one before it: that one waits for all that is on that stream."""

    same: Any = (None, None)
    """The address of the stream of the last call, while all have gone there; and that call."""
    _leaves_events = False

    def __init__(self, device: Any):
        self._index = device.index
        self.comm = torch.cuda.Stream(device, priority=-1)
        self._known: Any = (None, None)
        self._last: Any = None
        self._done = torch.cuda.Event()

    def _current(self) -> Any:
        if torch._C._cuda_getDevice() != self._index:
            raise InvalidError(
                f"tensors are in the memory of CUDA device {self._index}, and {torch._C._cuda_getDevice()} is the current one: torch.cuda.set_device before"
            )
        address = torch._C._cuda_getCurrentRawStream(self._index)
        known, current = self._known  # once: another thread, on another stream, may be in here
        if address != known:
            current = torch.cuda.current_stream(self._index)
            if current == self.comm:
                current = self.comm
            self._known = address, current
        return current

    def call(self, previous_event: Any = None, apart: bool = False, stream: Any = None) -> Call:
        """Work goes to the stream, whatever the current one does; else apart from the current one, or to that."""
        address, before = self.same  # once: another thread may be in here
        if before is not None and not apart and previous_event is None and stream is None:
            if torch._C._cuda_getCurrentRawStream(self._index) == address:
                return before  # type: ignore[no-any-return]
        self.same = None, None
        current, captured = self._current(), capturing(True)
        if stream is None:
            stream = self.comm if apart and not captured else current
            event: Optional[EventHandle] = getattr(previous_event, "event", None)
            if event is not None and event.event is not None:
                stream.wait_event(event.event)
            elif stream is not current:
                stream.wait_stream(current)
        elif stream == current:
            stream = current
        last = self._last
        if not captured and last is not None and last is not stream and last != stream:
            if self._leaves_events:
                stream.wait_event(self._done)
            else:
                stream.wait_stream(last)
                self._leaves_events = True
        return CallOnCuda(self, stream, current, apart, captured)

    def leave(self, stream: Any, captured: bool) -> None:
        if captured:
            self._last = None
            return
        if self._leaves_events:
            self._done.record(stream)
        elif stream is self._known[1]:
            self.same = self._known[0], CallAsBefore(self, stream, stream, False, False, True)
        self._last = stream
