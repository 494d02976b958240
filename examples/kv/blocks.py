#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Disaggregated serving: prefill processes write the KV cache of a prompt into a decode process's paged blocks, layer by layer while they
compute the next ones; decode goes on with what has come meanwhile.

    blocks.py decode --listen 127.0.0.1:7000 --prefills 2
    blocks.py prefill --connect 127.0.0.1:7000          # twice; they join when they come

The model is not one: K and V are integers that follow from request, layer and position, so that decode can check every byte. What is
real is the rest: blocks handed out and given back, requests under way side by side, peers that join, and what happens when one dies.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
from typing import Any, Dict, List, Tuple

import numpy as np

import tern_ep

BLOCK_TOKENS = 16  # tokens of a block
WIDTH = 1024  # bytes of K and V of a token in a layer
BLOCK_BYTES = BLOCK_TOKENS * WIDTH
MESSAGE_BYTES = 4096
STAGES = 4  # layers that prefill has under way
QUIT = b"{}"


def kv_of(request: int, layer: int, nr_tokens: int) -> Any:
    """[blocks][BLOCK_BYTES] of one layer: "computed" by a product of small integers, exactly."""
    nr_blocks = -(-nr_tokens // BLOCK_TOKENS)
    position = np.arange(nr_blocks * BLOCK_TOKENS, dtype=np.int64)[:, None]
    column = np.arange(WIDTH, dtype=np.int64)[None, :]
    values = (position + 1) @ (column * 37 + request * 101 + layer * 7 + 1)
    return (values % 251).astype(np.uint8).reshape(nr_blocks, BLOCK_BYTES)


# ---- decode --------------------------------------------------------------------------------------------------------


class Blocks:
    """Which blocks of the pool are free; shared by the threads that serve one prefill each."""

    def __init__(self, nr: int):
        self._free, self._changed = list(range(nr)), threading.Condition()

    def take(self, nr: int, wait_s: float = 60) -> List[int]:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._free) >= nr, wait_s):
                raise RuntimeError(f"no {nr} blocks free within {wait_s} s")
            taken, self._free = self._free[:nr], self._free[nr:]
            return taken

    def give_back(self, blocks: List[int]) -> None:
        with self._changed:
            self._free += blocks
            self._changed.notify_all()


class Decode:
    def __init__(self, chosen: Any):
        self.chosen = chosen
        self.pool = np.zeros((chosen.layers, chosen.blocks, BLOCK_BYTES), np.uint8)
        self.blocks = Blocks(chosen.blocks)
        self.served: List[Tuple[int, int]] = []

    def serve(self, connected: socket.socket, first: int, step: int) -> None:
        """The requests first, first + step, ... of one prefill, in its own group and engine over the one pool."""
        settings = dict(transport=self.chosen.transport, timeout_ms=self.chosen.timeout_ms, message_bytes=MESSAGE_BYTES)
        with tern_ep.Group.from_socket(connected, 0) as group, tern_ep.Engine(group, **settings) as engine:
            region = engine.register(self.pool)
            hello = dict(layers=self.chosen.layers, blocks=self.chosen.blocks, pool=region.descriptor.hex())
            engine.send(1, json.dumps(hello).encode()).wait()
            peers = engine.peers([1])
            under_way: List[Tuple[int, int, List[int], tern_ep.Operation]] = []
            for request in range(first, self.chosen.requests, step):
                if len(under_way) == self.chosen.ahead:
                    self.finish(*under_way.pop(0))
                under_way.append(self.begin(engine, peers, request))
            for one in under_way:
                self.finish(*one)
            engine.send(1, QUIT).wait()

    def begin(self, engine: tern_ep.Engine, peers: tern_ep.Peers, request: int) -> Tuple[int, int, List[int], tern_ep.Operation]:
        nr_tokens = 5 + request * 29 % (6 * BLOCK_TOKENS)
        blocks = self.blocks.take(-(-nr_tokens // BLOCK_TOKENS))
        engine.send(1, json.dumps(dict(request=request, tokens=nr_tokens, blocks=blocks)).encode()).wait()
        return request, nr_tokens, blocks, engine.expect(request, self.chosen.layers, peers=peers)

    def finish(self, request: int, nr_tokens: int, blocks: List[int], arrived: tern_ep.Operation) -> None:
        """Waits for all layers of a request, and looks at each byte: what stands for decoding."""
        arrived.wait()
        for layer in range(self.chosen.layers):
            if not np.array_equal(self.pool[layer, blocks], kv_of(request, layer, nr_tokens)):
                raise RuntimeError(f"request {request}, layer {layer}: other bytes came than were sent")
        self.served.append((request, nr_tokens))
        if self.chosen.die_after == len(self.served):
            os.kill(os.getpid(), signal.SIGKILL)
        self.blocks.give_back(blocks)

    def run(self) -> None:
        host, port = self.chosen.listen.rsplit(":", 1)
        with socket.create_server((host, int(port))) as listener:
            print(f"decode: listening at {host}:{listener.getsockname()[1]}", flush=True)
            listener.settimeout(60)
            failures: Dict[int, BaseException] = {}

            def serve(connected: socket.socket, number: int) -> None:
                try:
                    with connected:
                        self.serve(connected, number, self.chosen.prefills)
                except BaseException as error:  # told when all have ended
                    failures[number] = error

            threads = []
            for number in range(self.chosen.prefills):
                threads.append(threading.Thread(target=serve, args=(listener.accept()[0], number)))
                threads[-1].start()
            for thread in threads:
                thread.join()
        for error in failures.values():
            raise error
        nr_tokens = sum(tokens for _, tokens in self.served)
        print(f"decode: {len(self.served)} requests, {nr_tokens} tokens, every byte as it was sent", flush=True)


# ---- prefill -------------------------------------------------------------------------------------------------------


def message(engine: tern_ep.Engine) -> Any:
    """The next one; a decode that is gone is noticed."""
    while True:
        try:
            return json.loads(engine.recv(200)[1])
        except tern_ep.WaitTimeoutError:
            engine.peer(0)


def prefill(chosen: Any) -> None:
    host, port = chosen.connect.rsplit(":", 1)
    settings = dict(transport=chosen.transport, timeout_ms=chosen.timeout_ms, message_bytes=MESSAGE_BYTES)
    with socket.create_connection((host, int(port)), 60) as connected:
        with tern_ep.Group.from_socket(connected, 1) as group, tern_ep.Engine(group, **settings) as engine:
            hello = message(engine)
            pool = engine.remote(bytes.fromhex(hello["pool"]))
            stages = np.zeros((STAGES, hello["blocks"], BLOCK_BYTES), np.uint8)
            region, nr = engine.register(stages), 0
            written: List[Any] = [None] * STAGES
            while request := message(engine):
                for layer in range(hello["layers"]):
                    computed, stage = kv_of(request["request"], layer, request["tokens"]), nr % STAGES
                    if written[stage] is not None:
                        written[stage].wait()  # its last bytes have left
                    stages[stage, : len(computed)] = computed
                    ours = stage * hello["blocks"] + np.arange(len(computed))
                    theirs = layer * hello["blocks"] + np.array(request["blocks"])
                    written[stage] = engine.write_pages(region, pool, ours, theirs, page_bytes=BLOCK_BYTES, immediate=request["request"])
                    nr += 1
                    if chosen.die_after == nr:
                        os.kill(os.getpid(), signal.SIGKILL)
            for one in filter(None, written):
                one.wait()
            print(f"prefill: {nr} layers written, {engine.stats().bytes} bytes", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Prefill processes write KV blocks into a decode process.")
    parser.add_argument("role", choices=["decode", "prefill"])
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument("--connect", default="127.0.0.1:7000")
    parser.add_argument("--prefills", type=int, default=1, help="how many join")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=64, help="of the pool, in each layer")
    parser.add_argument("--ahead", type=int, default=3, help="requests under way with each prefill")
    parser.add_argument("--transport", default="verbs+ofi:tcp;ofi_rxm+shm")
    parser.add_argument("--timeout-ms", type=int, default=5000, help="silence after which a peer counts as dead")
    parser.add_argument("--die-after", type=int, default=0, help="for tests: killed after so many layers (prefill) or requests (decode)")
    chosen = parser.parse_args()
    try:
        Decode(chosen).run() if chosen.role == "decode" else prefill(chosen)
    except tern_ep.Error as error:
        print(f"{chosen.role}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
