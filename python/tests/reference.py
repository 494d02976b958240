# SPDX-License-Identifier: Apache-2.0
"""The whole exchange in numpy, written from the contract in tern.h: what each rank must receive, and what must come home.

Slow and simple on purpose: one route after the other, sums in float32 one addition at a time.
"""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import numpy as np

from tern_ep import Config, Device, Dtype, Layout, Reduce, Replicas, Scale, Weights

# ---- element types -------------------------------------------------------------------------------------------------


def bf16_encode(values: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(nan, bits >> 16 | 0x40, rounded).astype(np.uint16)


def bf16_decode(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _e4m3_values() -> np.ndarray:
    """Of the codes 0 to 126; 127 is NaN."""
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    return np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))


E4M3 = _e4m3_values()


def e4m3_encode(values: np.ndarray) -> np.ndarray:
    """To the nearest, ties to the even code, what is larger to 448."""
    magnitude = np.minimum(np.abs(values.astype(np.float64)), 448.0)
    upper = np.clip(np.searchsorted(E4M3, magnitude), 1, 126)
    lower = upper - 1
    below, above = magnitude - E4M3[lower], E4M3[upper] - magnitude
    code = np.where(below < above, lower, np.where(above < below, upper, np.where(lower % 2 == 0, lower, upper)))
    return (code | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


def encode(dtype: Dtype, values: np.ndarray) -> np.ndarray:
    if dtype == Dtype.BF16:
        return bf16_encode(values)
    with np.errstate(over="ignore"):
        return np.asarray(values).astype(np.float16 if dtype == Dtype.FP16 else np.float32)


def decode(dtype: Dtype, row: np.ndarray) -> np.ndarray:
    return bf16_decode(row) if dtype == Dtype.BF16 else row.astype(np.float32)


def quantise(scale: Scale, values: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """A row of float32 as FP8 with a scale for each block of 128: the elements are multiplied by the scale's inverse in float32."""
    elements, scales = [], []
    for start in range(0, len(values), 128):
        block = values[start : start + 128]
        amax = np.float32(np.max(np.abs(block)))
        if scale == Scale.FP32:
            ratio = np.float32(amax / np.float32(448))
            tiny = ratio < np.float32(2.0**-126)
            scales.append(np.float32(1) if amax == 0 else np.float32(2.0**-126) if tiny else ratio)
            inverse = np.float32(1) if amax == 0 else np.float32(2.0**126) if tiny else np.float32(np.float32(448) / amax)
        else:
            mantissa, exponent = np.frexp(np.float64(amax) / 448)
            power = 0 if amax == 0 else int(exponent) - (1 if mantissa == 0.5 else 0)  # the smallest power of two that is not less
            power = max(power, -126)
            scales.append(np.uint8(power + 127))
            inverse = np.float32(2.0**-power)
        elements.append(e4m3_encode((block * inverse).astype(np.float32)))
    return np.concatenate(elements), np.array(scales)


# ---- inputs of all ranks -------------------------------------------------------------------------------------------


def random_elements(rng: np.random.Generator, dtype: Dtype, shape: Tuple[int, ...]) -> np.ndarray:
    if dtype in (Dtype.BYTES, Dtype.FP8_E4M3):
        return rng.integers(0, 127, shape, np.uint8) | (rng.integers(0, 2, shape, np.uint8) << 7)
    magnitudes = rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, shape)
    return encode(dtype, magnitudes.astype(np.float32))


def aligned(array: np.ndarray) -> np.ndarray:
    import tern_ep

    copy = tern_ep.empty(array.shape, array.dtype)
    copy[...] = array
    return copy


class World:
    """The inputs of all ranks for one round, and what has to become of them."""

    def __init__(self, config: Config, nr_ranks: int, nr_tokens: List[int], seed: int):
        self.config, self.nr_ranks = config, nr_ranks
        rng = np.random.default_rng(seed)
        n = config.replica_ranks
        self.tokens = [nr_tokens[rank - rank % n] for rank in range(nr_ranks)]
        self.x: List[np.ndarray] = []
        self.scales: List[Any] = []
        self.ids: List[np.ndarray] = []
        self.weights: List[np.ndarray] = []
        self.y: List[np.ndarray] = []
        for rank in range(nr_ranks):
            self._draw(rng, rank) if rank % n == 0 else self._repeat(rank - rank % n)
        self._place()

    def _draw(self, rng: np.random.Generator, rank: int) -> None:
        c, count = self.config, self.tokens[rank]
        width = c.payload_bytes if c.x_dtype == Dtype.BYTES else c.hidden
        self.x.append(aligned(random_elements(rng, c.x_dtype, (count, width))))
        blocks = -(-c.hidden // 128)
        scales = rng.random((count, blocks), np.float32) if c.scale == Scale.FP32 else rng.integers(100, 150, (count, blocks), np.uint8)
        self.scales.append(scales if c.x_dtype == Dtype.FP8_E4M3 else None)
        ids = np.array([rng.permutation(c.nr_experts)[: c.topk] for _ in range(count)], np.int64).reshape(count, c.topk)
        ids[rng.random(ids.shape) < 0.1] = -1
        self.ids.append(ids)
        self.weights.append(rng.random((count, c.topk), np.float32))
        self.y.append(random_elements(rng, c.combine_dtype, (count, c.topk, c.hidden)))

    def _repeat(self, home: int) -> None:
        for values in (self.x, self.scales, self.ids, self.weights, self.y):
            values.append(values[home])

    def _place(self) -> None:
        c, given = self.config, self.config.placement
        nr = given.nr_physical if given else c.nr_experts
        block, larger = divmod(nr, self.nr_ranks)
        blocks = [rank for rank in range(self.nr_ranks) for _ in range(block + (rank < larger))]
        self.rank_of = list(given.rank) if given and given.rank is not None else blocks
        self.logical = list(given.logical) if given and given.logical is not None else list(range(nr))
        self.local = [[p for p in range(nr) if self.rank_of[p] == rank] for rank in range(self.nr_ranks)]

    def sender(self, rank: int, token: int) -> int:
        n = self.config.replica_ranks
        return rank - rank % n + token % n

    def place(self, logical: List[int]) -> None:
        """Other experts in the same places."""
        self.logical = list(logical)

    def _choose(self, rank: int) -> Dict[Tuple[int, int], int]:
        """The replica of each (token, k): those with one place first, then each on the rank with the fewest so far."""
        chosen: Dict[Tuple[int, int], int] = {}
        sent = [0] * self.nr_ranks
        for only in (True, False):
            for token, k in np.ndindex(*self.ids[rank].shape):
                source, expert = self.sender(rank, token), self.ids[rank][token, k]
                replicas = [p for p, logical in enumerate(self.logical) if logical == expert]
                if expert < 0 or (len(replicas) == 1) != only:
                    continue
                first = (source + token) % len(replicas)
                order = [p for p in replicas if self.rank_of[p] == source][:1] + replicas[first:] + replicas[:first]
                if self.config.replicas == Replicas.IN_TURN or self.config.device == Device.CUDA:
                    order = order[:1]
                chosen[token, k] = min(order, key=lambda p: sent[self.rank_of[p]])
                sent[self.rank_of[chosen[token, k]]] += 1
        return chosen

    def physical(self, rank: int, token: int) -> List[int]:
        """Physical experts of a token, -1: none."""
        chosen = self._choose(rank)
        return [chosen.get((token, k), -1) for k in range(self.config.topk)]

    # ---- dispatch ----

    def routes_to(self, rank: int) -> List[Tuple[int, int, List[Tuple[int, int]]]]:
        """(source, token, [(k, local expert)]) of what ends on rank, by source and token."""
        found = []
        for source in range(self.nr_ranks):
            for token in range(self.tokens[source]):
                if self.sender(source, token) != source:
                    continue
                chosen = self.physical(source, token)
                here = [(k, self.local[rank].index(p)) for k, p in enumerate(chosen) if p >= 0 and self.rank_of[p] == rank]
                if here:
                    found.append((source, token, here))
        return found

    def row(self, source: int, token: int) -> Tuple[np.ndarray, Any]:
        c = self.config
        if c.dispatch_dtype == c.x_dtype:
            return self.x[source][token], None if self.scales[source] is None else self.scales[source][token]
        return quantise(c.scale, decode(c.x_dtype, self.x[source][token]))

    def received(self, rank: int) -> Dict[str, Any]:
        """counts, offsets, extent, and by row position (source, token, k, weight, [(k, local)])."""
        c, by_source = self.config, self.config.layout == Layout.BY_SOURCE
        nr_lists = self.nr_ranks if by_source else len(self.local[rank])
        lists: List[List[Any]] = [[] for _ in range(nr_lists)]
        for source, token, here in self.routes_to(rank):
            if by_source:
                lists[source].append((source, token, -1, np.float32(0), here))
                continue
            for k, local in here:
                lists[local].append((source, token, k, self.weights[source][token, k], here))
        share = -(-c.max_tokens // c.replica_ranks)
        capacity = c.capacity or self.nr_ranks * share
        offsets, end = [], 0
        for i, rows in enumerate(lists):
            start = i * capacity if c.layout == Layout.PADDED else end if by_source else -(-end // c.alignment) * c.alignment
            offsets.append(start)
            end = start + len(rows)
        extent = nr_lists * capacity if c.layout == Layout.PADDED else end
        rows = {start + i: row for start, in_list in zip(offsets, lists) for i, row in enumerate(in_list)}
        return {"counts": [len(rows_of) for rows_of in lists], "offsets": offsets, "extent": extent, "rows": rows}

    # ---- the experts, and combine ----

    def _add(self, total: np.ndarray, rank: int, token: int, k: int) -> np.ndarray:
        """total + weight * y, rounded once: products are exact in a long double, and sums nearly always."""
        c = self.config
        y = decode(c.combine_dtype, self.y[rank][token, k]).astype(np.longdouble)
        weight = self.weights[rank][token, k] if c.weights == Weights.COMBINE else 1
        return (total + weight * y).astype(np.float32)

    def partial(self, rank: int, token: int, ks: List[int]) -> np.ndarray:
        """What one rank sends home for a token with reduction at the expert."""
        total = np.zeros(self.config.hidden, np.float32)
        for k in ks:
            total = self._add(total, rank, token, k)
        return encode(self.config.combine_dtype, total)

    def results(self, source: int, token: int, k: int, here: List[Tuple[int, int]]) -> np.ndarray:
        """The y row that belongs to a received row."""
        if self.config.layout == Layout.BY_SOURCE:
            return self.partial(source, token, [k for k, _ in here])
        return self.y[source][token, k]

    def combined(self, rank: int) -> np.ndarray:
        c = self.config
        out = np.zeros((self.tokens[rank], c.hidden), np.float32)
        for token in range(self.tokens[rank]):
            chosen = self.physical(rank, token)
            if c.reduce == Reduce.HOME:
                for k in (k for k, p in enumerate(chosen) if p >= 0):
                    out[token] = self._add(out[token], rank, token, k)
                continue
            for holder in range(self.nr_ranks):
                ks = [k for k, p in enumerate(chosen) if p >= 0 and self.rank_of[p] == holder]
                if ks:
                    out[token] = out[token] + decode(c.combine_dtype, self.partial(rank, token, ks))
        return encode(c.combine_dtype, out)


# ---- judging -------------------------------------------------------------------------------------------------------


def bits(array: Any) -> np.ndarray:
    array = np.ascontiguousarray(array)
    return array.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[array.dtype.itemsize])


def judge_received(world: World, rank: int, received: Any) -> None:
    """Every row, scale, count, offset and origin, bit for bit."""
    due = world.received(rank)
    assert list(received.counts) == due["counts"]
    assert list(received.offsets) == due["offsets"]
    assert received.extent == due["extent"]
    assert received.nr_rows == len(due["rows"]) == sum(due["counts"])
    for position, (source, token, k, weight, here) in due["rows"].items():
        assert tuple(received.rows[position]) == (source, token, k, weight)
        x, scales = world.row(source, token)
        np.testing.assert_array_equal(bits(received.x[position]), bits(x))
        if scales is not None:
            np.testing.assert_array_equal(bits(received.scales[position]), bits(scales))
        if world.config.layout == Layout.BY_SOURCE:
            local = dict(here)
            weights = world.weights[source][token]
            assert list(received.topk_ids[position]) == [local.get(k, -1) for k in range(world.config.topk)]
            assert list(received.topk_weights[position]) == [weights[k] if k in local else 0 for k in range(world.config.topk)]


def fill_results(world: World, rank: int, y: np.ndarray) -> None:
    y[...] = np.asarray(0x5A, np.uint8).astype(y.dtype)
    for position, (source, token, k, _, here) in world.received(rank)["rows"].items():
        y[position] = world.results(source, token, k, here)


def judge_combined(world: World, rank: int, out: Any) -> None:
    due = world.combined(rank)
    assert out.shape == due.shape
    np.testing.assert_array_equal(bits(out), bits(due))
