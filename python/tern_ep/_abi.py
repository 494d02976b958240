# SPDX-License-Identifier: Apache-2.0
"""include/tern.h, tern_engine.h, tern_balance.h, tern_weights.h and tern_layer.h, as ctypes sees them. Names are those of C, so that one search finds both sides.

Nothing here is decided in Python: tests/test_abi.py compiles the header and compares every struct, field, enumerator and
function with this file, and fails when one of them differs.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_size_t,
    c_uint16,
    c_uint32,
    c_uint64,
    c_uint8,
    c_void_p,
)
from typing import Any, Dict, List, Tuple

TERN_MAX_TOPK = 32
TERN_MAX_NICS = 4
TERN_WEIGHTS_MAX_PARTS = 16

tern_allgather_fn = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_size_t)
tern_close_fn = CFUNCTYPE(None, c_void_p)
tern_load_fn = CFUNCTYPE(c_int, c_void_p, c_uint32, c_int32, c_uint64, c_void_p, c_uint64)


class tern_boot(Structure):
    _fields_ = [
        ("rank", c_int),
        ("nr_ranks", c_int),
        ("allgather", tern_allgather_fn),
        ("ctx", c_void_p),
        ("close", tern_close_fn),
    ]


tern_rendezvous_set_fn = CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t, c_int)
tern_rendezvous_get_fn = CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, POINTER(c_size_t), c_int)


class tern_rendezvous(Structure):
    _fields_ = [
        ("set", tern_rendezvous_set_fn),
        ("get", tern_rendezvous_get_fn),
        ("ctx", c_void_p),
    ]


class tern_group_config(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("boot", tern_boot),
        ("wait_ms", c_int),
        ("node", c_char_p),
        ("transport", c_char_p),
        ("force_engine", c_int),
        ("elastic", c_int),
        ("silence_ms", c_int),
        ("rendezvous", tern_rendezvous),
    ]


class tern_placement(Structure):
    _fields_ = [
        ("nr_physical", c_uint32),
        ("logical", POINTER(c_int32)),
        ("rank", POINTER(c_int32)),
    ]


class tern_moe_config(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("mode", c_int),
        ("layout", c_int),
        ("reduce", c_int),
        ("weights", c_int),
        ("hidden", c_uint32),
        ("nr_experts", c_uint32),
        ("topk", c_uint32),
        ("max_tokens", c_uint32),
        ("x_dtype", c_int),
        ("dispatch_dtype", c_int),
        ("scale", c_int),
        ("payload_bytes", c_uint32),
        ("combine_dtype", c_int),
        ("nr_slots", c_uint32),
        ("alignment", c_uint32),
        ("capacity", c_uint64),
        ("placement", tern_placement),
        ("replica_ranks", c_uint32),
        ("wait_ms", c_int),
        ("first_epoch", c_uint32),
        ("nr_chunks", c_uint32),
        ("chunk_bytes", c_uint32),
        ("device", c_uint16),
        ("caller_output", c_uint16),
        ("nr_threads", c_uint32),
        ("elastic", c_uint32),
        ("parallel_for", c_void_p),
        ("parallel_ctx", c_void_p),
        ("combine_floats", c_uint32),
        ("masks", c_uint32),
        ("replicas", c_uint32),
        ("gate_rows", c_uint32),
        ("late_weights", c_uint32),
        ("slots_in_turn", c_uint32),
        ("nr_sms", c_uint32),
    ]


class tern_memory(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("window_bytes", c_uint64),
        ("output_bytes", c_uint64),
        ("private_bytes", c_uint64),
        ("staging_bytes", c_uint64),
    ]


class tern_plan_beside(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("nr_rows", c_uint64),
        ("wide_ids", c_void_p),
        ("tokens", c_void_p),
        ("topk_ids", c_void_p),
    ]


class tern_routes(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("nr_ranks", c_uint32),
        ("nr_experts", c_uint32),
        ("topk", c_uint32),
        ("nr_tokens", c_uint32),
        ("topk_ids", c_void_p),
        ("topk_ids_bits", c_uint32),
        ("device", c_uint32),
        ("stream", c_void_p),
        ("rank_tokens", c_void_p),
        ("expert_routes", c_void_p),
        ("in_rank", c_void_p),
        ("told", c_void_p),
        ("told_as", c_uint32),
        ("finished", c_void_p),
    ]


class tern_dispatch(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("slot", c_uint32),
        ("nr_tokens", c_uint32),
        ("x", c_void_p),
        ("x_stride", c_size_t),
        ("scales", c_void_p),
        ("scales_stride", c_size_t),
        ("topk_ids", c_void_p),
        ("topk_ids_bits", c_uint32),
        ("reserved", c_uint32),
        ("topk_weights", c_void_p),
        ("tag", c_uint64),
        ("plan", c_uint64),
    ]


class tern_row(Structure):
    _fields_ = [("rank", c_int32), ("token", c_int32), ("k", c_int32), ("weight", c_float)]


class tern_received(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("into_x", c_void_p),
        ("into_scales", c_void_p),
        ("x", c_void_p),
        ("scales", c_void_p),
        ("counts", c_void_p),
        ("offsets", c_void_p),
        ("rows", c_void_p),
        ("topk_ids", c_void_p),
        ("topk_weights", c_void_p),
        ("nr_rows", c_uint64),
        ("extent", c_uint64),
        ("wide_ids", c_void_p),
        ("expert_counts", c_void_p),
        ("expert_totals", c_void_p),
        ("waited_ns", c_void_p),
        ("gemm_scales", c_void_p),
        ("gemm_scales_stride", c_uint32),
        ("counts_alignment", c_uint32),
        ("into_counts", c_void_p),
        ("into_offsets", c_void_p),
        ("version", c_uint32),
        ("reserved", c_uint32),
    ]


class tern_combine(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("slot", c_uint32),
        ("unweighted", c_uint32),
        ("y", c_void_p),
        ("y_stride", c_size_t),
        ("plan", c_uint64),
        ("topk_weights", c_void_p),
        ("floats", c_void_p),
        ("out_floats", c_void_p),
        ("tag", c_uint64),
        ("gated", c_uint32),
        ("no_floats", c_uint32),
    ]


class tern_gate(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("nr_local", c_uint32),
        ("tile_rows", c_uint32),
        ("tiles", c_uint32),
        ("whole", c_uint32),
        ("wait_ns", c_uint64),
        ("counts", c_void_p),
        ("offsets", c_void_p),
        ("words", c_void_p),
        ("ready", c_void_p),
        ("done", c_void_p),
        ("failed", c_void_p),
    ]


class tern_wait_report(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("rank", c_int32),
        ("peer", c_int32),
        ("nr_missing", c_uint32),
        ("slot", c_uint32),
        ("phase", c_int32),
        ("epoch_expected", c_uint32),
        ("epoch_seen", c_uint32),
        ("count_seen", c_uint32),
        ("arrived", c_uint64),
        ("expected", c_uint64),
        ("waited_ns", c_uint64),
        ("error", c_int32),
        ("reserved", c_int32),
    ]


class tern_view(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("number", c_uint64),
        ("nr_alive", c_uint32),
        ("nr_gone", c_uint32),
        ("alive", c_uint64 * 4),
        ("gone", c_uint64 * 4),
        ("change_ns", c_uint64),
        ("joined", c_uint64 * 4),
        ("nr_joined", c_uint32),
        ("reserved", c_uint32),
    ]


class tern_stats(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("rounds", c_uint64),
        ("tokens", c_uint64),
        ("routes", c_uint64),
        ("rows", c_uint64),
        ("rows_away", c_uint64),
        ("tokens_away", c_uint64),
        ("dispatch_bytes", c_uint64),
        ("combine_bytes", c_uint64),
        ("rows_received", c_uint64),
        ("engine_bytes", c_uint64),
    ]


tern_done_fn = CFUNCTYPE(None, c_void_p, c_int, c_char_p)
tern_immediate_fn = CFUNCTYPE(c_int, c_void_p, c_uint32, c_uint32)


class tern_engine_config(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("transport", c_char_p),
        ("nr_nics", c_uint32),
        ("ring_entries", c_uint32),
        ("devices", c_char_p * TERN_MAX_NICS),
        ("nr_operations", c_uint32),
        ("depth", c_uint32),
        ("peer_depth", c_uint32),
        ("message_bytes", c_uint32),
        ("message_credits", c_uint32),
        ("core", c_int),
        ("wait_ms", c_int),
        ("heartbeat_ms", c_int),
        ("timeout_ms", c_int),
        ("stripe_bytes", c_uint64),
        ("immediate", tern_immediate_fn),
        ("immediate_ctx", c_void_p),
    ]


class tern_engine_stats(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("operations", c_uint64),
        ("failed", c_uint64),
        ("writes", c_uint64),
        ("bytes", c_uint64),
        ("again", c_uint64),
        ("immediates", c_uint64),
        ("immediates_lost", c_uint64),
        ("messages_sent", c_uint64),
        ("messages_received", c_uint64),
        ("heartbeats_sent", c_uint64),
        ("drains", c_uint64),
        ("sleeps", c_uint64),
        ("steps", c_uint64),
    ]


class _nic(Structure):
    _fields_ = [("address", c_uint64), ("bytes", c_uint64), ("key", c_uint64)]


class tern_descriptor(Structure):
    _fields_ = [
        ("magic", c_uint32),
        ("rank", c_uint32),
        ("nr_nics", c_uint32),
        ("reserved", c_uint32),
        ("bytes", c_uint64),
        ("nic", _nic * TERN_MAX_NICS),
    ]


class tern_write(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("peer", c_uint32),
        ("flags", c_uint32),
        ("immediate", c_uint32),
        ("reserved", c_uint32),
        ("local", c_void_p),
        ("remote", c_void_p),
        ("local_offset", c_uint64),
        ("remote_offset", c_uint64),
        ("bytes", c_uint64),
        ("done", tern_done_fn),
        ("ctx", c_void_p),
    ]


class tern_paged_write(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("peer", c_uint32),
        ("flags", c_uint32),
        ("immediate", c_uint32),
        ("nr_pages", c_uint32),
        ("local", c_void_p),
        ("remote", c_void_p),
        ("page_bytes", c_uint64),
        ("local_offset", c_uint64),
        ("remote_offset", c_uint64),
        ("local_stride", c_uint64),
        ("remote_stride", c_uint64),
        ("local_pages", c_void_p),
        ("remote_pages", c_void_p),
        ("done", tern_done_fn),
        ("ctx", c_void_p),
    ]


class tern_slice(Structure):
    _fields_ = [
        ("local_offset", c_uint64),
        ("remote_offset", c_uint64),
        ("bytes", c_uint64),
        ("immediate", c_uint32),
        ("reserved", c_uint32),
    ]


class tern_scatter(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("peers", c_void_p),
        ("local", c_void_p),
        ("slices", POINTER(tern_slice)),
        ("done", tern_done_fn),
        ("ctx", c_void_p),
    ]


class tern_expect(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("flags", c_uint32),
        ("immediate", c_uint32),
        ("count", c_uint64),
        ("peers", c_void_p),
        ("done", tern_done_fn),
        ("ctx", c_void_p),
    ]


class tern_barrier(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("flags", c_uint32),
        ("immediate", c_uint32),
        ("peers", c_void_p),
        ("done", tern_done_fn),
        ("ctx", c_void_p),
    ]


class tern_put(Structure):
    _fields_ = [
        ("peer", c_uint32),
        ("reserved", c_uint32),
        ("local", c_void_p),
        ("remote", c_void_p),
        ("local_offset", c_uint64),
        ("remote_offset", c_uint64),
        ("bytes", c_uint64),
        ("signal_remote", c_void_p),
        ("signal_offset", c_uint64),
        ("signal", c_uint64),
    ]


class tern_send(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("peer", c_uint32),
        ("flags", c_uint32),
        ("data", c_void_p),
        ("bytes", c_uint32),
        ("reserved", c_uint32),
        ("done", tern_done_fn),
        ("ctx", c_void_p),
    ]


class tern_balance_config(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("nr_experts", c_uint32),
        ("nr_physical", c_uint32),
        ("nr_ranks", c_uint32),
        ("rank", POINTER(c_int32)),
        ("domain", POINTER(c_int32)),
    ]


class tern_copy(Structure):
    _fields_ = [
        ("expert", c_int32),
        ("from", c_int32),
        ("to", c_int32),
    ]


class tern_balance_input(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("load", POINTER(c_double)),
        ("now", POINTER(c_int32)),
        ("alive", POINTER(c_uint8)),
        ("max_copies", c_uint32),
        ("spread", c_uint32),
    ]


class tern_balance_result(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("before", c_double),
        ("after", c_double),
        ("nr_copies", c_uint32),
        ("nr_spread", c_uint32),
    ]


class tern_weights_part(Structure):
    _fields_ = [
        ("base", c_void_p),
        ("bytes", c_uint64),
        ("stride", c_uint64),
    ]


class tern_weights_config(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("nr_layers", c_uint32),
        ("nr_experts", c_uint32),
        ("nr_physical", c_uint32),
        ("nr_parts", c_uint32),
        ("rank", POINTER(c_int32)),
        ("parts", POINTER(tern_weights_part)),
        ("nr_backups", c_uint32),
        ("page_bytes", c_uint32),
        ("window", c_uint32),
        ("silence_ms", c_uint32),
        ("rate", c_uint64),
        ("load", tern_load_fn),
        ("load_ctx", c_void_p),
    ]


class tern_weights_progress(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("nr_copies", c_uint32),
        ("nr_whole", c_uint32),
        ("nr_failed", c_uint32),
        ("reserved", c_uint32),
        ("bytes_left", c_uint64),
    ]


class tern_weights_stats(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("copies", c_uint64),
        ("failed", c_uint64),
        ("pages", c_uint64),
        ("bytes", c_uint64),
        ("pages_wrong", c_uint64),
        ("pages_given", c_uint64),
        ("sources_left", c_uint64),
        ("pages_loaded", c_uint64),
    ]


class tern_layer_config(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("inner", c_uint32),
        ("activation", c_uint32),
        ("gate_up", c_void_p),
        ("down", c_void_p),
        ("gate_up_scales", POINTER(c_float)),
        ("down_scales", POINTER(c_float)),
        ("beside_sms", c_uint32),
    ]


STRUCTS: List[Any] = [
    tern_boot,
    tern_rendezvous,
    tern_group_config,
    tern_placement,
    tern_moe_config,
    tern_memory,
    tern_dispatch,
    tern_plan_beside,
    tern_routes,
    tern_row,
    tern_received,
    tern_combine,
    tern_gate,
    tern_wait_report,
    tern_view,
    tern_stats,
    tern_engine_config,
    tern_engine_stats,
    tern_descriptor,
    tern_write,
    tern_paged_write,
    tern_slice,
    tern_scatter,
    tern_expect,
    tern_barrier,
    tern_put,
    tern_send,
    tern_balance_config,
    tern_copy,
    tern_balance_input,
    tern_balance_result,
    tern_weights_part,
    tern_weights_config,
    tern_weights_progress,
    tern_weights_stats,
    tern_layer_config,
]

# Enumerators by enum, as in C. The public enums are made from these.
ENUMS: Dict[str, Dict[str, int]] = {
    "tern_error": {
        "TERN_OK": 0,
        "TERN_ERR_INVALID": -1,
        "TERN_ERR_STATE": -2,
        "TERN_ERR_MISMATCH": -3,
        "TERN_ERR_NOMEM": -4,
        "TERN_ERR_SYSTEM": -5,
        "TERN_ERR_BOOTSTRAP": -6,
        "TERN_ERR_TIMEOUT": -7,
        "TERN_ERR_PEER_DEAD": -8,
        "TERN_ERR_PEER_LEFT": -9,
        "TERN_ERR_CAPACITY": -10,
        "TERN_ERR_PROTOCOL": -11,
        "TERN_ERR_UNSUPPORTED": -12,
        "TERN_ERR_MEMBERS": -13,
        "TERN_ERR_EXPELLED": -14,
        "TERN_ERR_QUORUM": -15,
        "TERN_ERR_LOST_EXPERTS": -16,
    },
    "tern_path": {"TERN_PATH_SELF": 0, "TERN_PATH_MAPPED": 1, "TERN_PATH_NONE": 2, "TERN_PATH_ENGINE": 3},
    "tern_dtype": {"TERN_BF16": 1, "TERN_FP16": 2, "TERN_FP32": 3, "TERN_FP8_E4M3": 4, "TERN_BYTES": 5},
    "tern_scale": {"TERN_SCALE_NONE": 0, "TERN_SCALE_FP32": 1, "TERN_SCALE_UE8M0": 2},
    "tern_mode": {"TERN_AUTO": 0, "TERN_LOW_LATENCY": 1, "TERN_HIGH_THROUGHPUT": 2},
    "tern_layout": {"TERN_PADDED": 1, "TERN_CONTIGUOUS": 2, "TERN_BY_SOURCE": 3},
    "tern_reduce": {"TERN_REDUCE_HOME": 1, "TERN_REDUCE_EXPERT": 2},
    "tern_weights": {"TERN_WEIGHTS_COMBINE": 1, "TERN_WEIGHTS_PASS": 2},
    "tern_replicas": {"TERN_REPLICAS_AUTO": 0, "TERN_REPLICAS_IN_TURN": 1, "TERN_REPLICAS_LEAST_LOADED": 2},
    "tern_device": {"TERN_DEVICE_CPU": 0, "TERN_DEVICE_CUDA": 1},
    "tern_change": {"TERN_CHANGE_LEAVE": 1, "TERN_CHANGE_EXPEL": 2},
    "tern_activation": {"TERN_SWIGLU": 1, "TERN_LINEAR_GATED": 2},
    "tern_phase": {"TERN_PHASE_COUNTS": 0, "TERN_PHASE_DISPATCH": 1, "TERN_PHASE_COMBINE": 2},
    "tern_op_flags": {"TERN_IMMEDIATE": 1, "TERN_TRY": 2},
    "tern_signal_policy": {
        "TERN_SIGNAL_DECOUPLED": 3,
        "TERN_SIGNAL_NIC_FENCE": 4,
        "TERN_SIGNAL_PERSEUS": 5,
        "TERN_SIGNAL_IMMEDIATE": 6,
    },
}

_group = c_void_p
_moe = c_void_p
_engine = c_void_p
_op = POINTER(c_uint64)
_out = POINTER(c_void_p)

# What each function returns, and what it takes.
FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "tern_strerror": (c_char_p, [c_int]),
    "tern_last_error": (c_char_p, []),
    "tern_version": (c_char_p, []),
    "tern_boot_env": (c_int, [POINTER(tern_boot)]),
    "tern_boot_restarts": (c_int, []),
    "tern_rendezvous_env": (c_int, [POINTER(tern_rendezvous)]),
    "tern_boot_self": (c_int, [POINTER(tern_boot)]),
    "tern_threads_create": (c_int, [c_int, c_int, _out]),
    "tern_threads_boot": (c_int, [c_void_p, c_int, POINTER(tern_boot)]),
    "tern_threads_destroy": (None, [c_void_p]),
    "tern_group_config_init_sized": (None, [POINTER(tern_group_config), c_size_t]),
    "tern_group_create": (c_int, [POINTER(tern_group_config), _out]),
    "tern_group_join": (c_int, [POINTER(tern_group_config), _out]),
    "tern_group_destroy": (c_int, [_group]),
    "tern_group_rank": (c_int, [_group]),
    "tern_group_nr_ranks": (c_int, [_group]),
    "tern_group_nr_nodes": (c_int, [_group]),
    "tern_group_node": (c_int, [_group, c_int]),
    "tern_group_path": (c_int, [_group, c_int]),
    "tern_group_describe": (c_char_p, [_group]),
    "tern_group_allgather": (c_int, [_group, c_void_p, c_void_p, c_size_t]),
    "tern_group_propose": (c_int, [_group, c_int, c_int]),
    "tern_group_pending": (c_int, [_group]),
    "tern_group_view_change": (c_int, [_group, POINTER(tern_view)]),
    "tern_moe_config_init_sized": (None, [POINTER(tern_moe_config), c_size_t]),
    "tern_moe_create": (c_int, [_group, POINTER(tern_moe_config), _out]),
    "tern_moe_destroy": (c_int, [_moe]),
    "tern_moe_leave": (c_int, [_moe]),
    "tern_moe_set_wait": (c_int, [_moe, c_int]),
    "tern_moe_mask": (c_int, [_moe, c_int]),
    "tern_moe_place": (c_int, [_moe, c_uint32, POINTER(c_int32), c_uint32]),
    "tern_moe_nr_local": (c_int, [_moe]),
    "tern_moe_mode": (c_int, [_moe]),
    "tern_moe_local_expert": (c_int, [_moe, c_uint32]),
    "tern_moe_memory": (c_int, [_moe, POINTER(tern_memory)]),
    "tern_count_routes": (c_int, [POINTER(tern_routes)]),
    "tern_dispatch_send": (c_int, [_moe, POINTER(tern_dispatch)]),
    "tern_dispatch_recv": (c_int, [_moe, c_uint32, POINTER(tern_received)]),
    "tern_combine_send": (c_int, [_moe, POINTER(tern_combine)]),
    "tern_combine_recv": (c_int, [_moe, c_uint32, c_void_p, c_size_t]),
    "tern_release": (c_int, [_moe, c_uint32]),
    "tern_received_sizes": (c_int, [_moe, c_uint32, POINTER(c_uint64), POINTER(c_uint64)]),
    "tern_plan_create": (c_int, [_moe, c_uint32, POINTER(c_uint64)]),
    "tern_plan_create_beside": (c_int, [_moe, c_uint32, POINTER(tern_plan_beside), POINTER(c_uint64)]),
    "tern_plan_destroy": (c_int, [_moe, c_uint64]),
    "tern_moe_owed": (c_int, [_moe, c_uint32, POINTER(c_uint64)]),
    "tern_dispatch": (c_int, [_moe, POINTER(tern_dispatch), POINTER(tern_received)]),
    "tern_combine": (c_int, [_moe, POINTER(tern_combine), c_void_p, c_size_t]),
    "tern_moe_set_stream": (c_int, [_moe, c_uint32, c_void_p]),
    "tern_moe_set_nr_tokens_at": (c_int, [_moe, c_uint32, c_void_p]),
    "tern_moe_set_sms": (c_int, [_moe, c_uint32]),
    "tern_moe_gate": (c_int, [_moe, c_uint32, POINTER(tern_gate)]),
    "tern_moe_status": (c_int, [_moe]),
    "tern_moe_wait_report": (c_int, [_moe, POINTER(tern_wait_report)]),
    "tern_moe_stats": (c_int, [_moe, POINTER(tern_stats)]),
    "tern_moe_expert_load": (c_int, [_moe, POINTER(c_uint64), c_uint32]),
    "tern_moe_stats_reset": (c_int, [_moe]),
    "tern_engine_config_init_sized": (None, [POINTER(tern_engine_config), c_size_t]),
    "tern_engine_create": (c_int, [_group, POINTER(tern_engine_config), _out]),
    "tern_engine_destroy": (c_int, [_engine]),
    "tern_engine_rank": (c_int, [_engine]),
    "tern_engine_nr_peers": (c_int, [_engine]),
    "tern_engine_describe": (c_char_p, [_engine]),
    "tern_engine_peer": (c_int, [_engine, c_uint32]),
    "tern_engine_stats": (c_int, [_engine, POINTER(tern_engine_stats)]),
    "tern_engine_register": (c_int, [_engine, c_void_p, c_uint64, _out]),
    "tern_region_descriptor": (c_int, [c_void_p, POINTER(tern_descriptor)]),
    "tern_region_deregister": (c_int, [c_void_p, c_int]),
    "tern_engine_import": (c_int, [_engine, POINTER(tern_descriptor), _out]),
    "tern_remote_forget": (c_int, [c_void_p, c_int]),
    "tern_peers_create": (c_int, [_engine, c_void_p, c_void_p, c_uint32, _out]),
    "tern_peers_destroy": (c_int, [c_void_p, c_int]),
    "tern_engine_write": (c_int, [_engine, POINTER(tern_write), _op]),
    "tern_engine_write_pages": (c_int, [_engine, POINTER(tern_paged_write), _op]),
    "tern_engine_scatter": (c_int, [_engine, POINTER(tern_scatter), _op]),
    "tern_engine_expect": (c_int, [_engine, POINTER(tern_expect), _op]),
    "tern_engine_count": (c_int, [_engine, c_uint32, POINTER(c_uint64)]),
    "tern_engine_barrier": (c_int, [_engine, POINTER(tern_barrier), _op]),
    "tern_engine_put_group": (c_int, [_engine, c_int, c_uint32, tern_done_fn, c_void_p, _op]),
    "tern_engine_put": (c_int, [_engine, c_uint64, POINTER(tern_put), c_uint32]),
    "tern_engine_send": (c_int, [_engine, POINTER(tern_send), _op]),
    "tern_engine_recv": (c_int, [_engine, POINTER(c_uint32), c_void_p, POINTER(c_uint32), c_int]),
    "tern_op_wait": (c_int, [_engine, c_uint64, c_int]),
    "tern_op_poll": (c_int, [_engine, c_uint64]),
    "tern_op_forget": (c_int, [_engine, c_uint64]),
    "tern_balance_create": (c_int, [POINTER(tern_balance_config), _out]),
    "tern_balance_destroy": (c_int, [c_void_p]),
    "tern_balance_plan": (c_int, [c_void_p, POINTER(tern_balance_input), POINTER(c_int32), POINTER(tern_copy), POINTER(tern_balance_result)]),
    "tern_weights_create": (c_int, [_engine, POINTER(tern_weights_config), _out]),
    "tern_weights_destroy": (c_int, [c_void_p]),
    "tern_weights_hold": (c_int, [c_void_p, c_uint32, c_uint32, c_int32]),
    "tern_weights_held": (c_int, [c_void_p, c_uint32, POINTER(c_int32)]),
    "tern_weights_use": (c_int, [c_void_p, c_uint32, POINTER(c_int32)]),
    "tern_weights_move": (c_int, [c_void_p, c_uint32, POINTER(tern_copy), c_uint32, POINTER(c_uint64)]),
    "tern_weights_backup": (c_int, [c_void_p, c_uint32, POINTER(c_int32), POINTER(c_uint8), POINTER(c_uint64)]),
    "tern_weights_poll": (c_int, [c_void_p, c_uint64, POINTER(tern_weights_progress)]),
    "tern_weights_wait": (c_int, [c_void_p, c_uint64, c_int, POINTER(tern_weights_progress)]),
    "tern_weights_stats": (c_int, [c_void_p, POINTER(tern_weights_stats)]),
    "tern_layer_config_init_sized": (None, [POINTER(tern_layer_config), c_size_t]),
    "tern_layer_create": (c_int, [_moe, POINTER(tern_layer_config), _out]),
    "tern_layer_destroy": (c_int, [c_void_p]),
    "tern_layer_experts": (c_int, [c_void_p, c_uint32, POINTER(tern_received), c_void_p]),
    "tern_layer_run": (c_int, [c_void_p, POINTER(tern_dispatch), c_void_p, c_size_t]),
    "tern_layer_memory": (c_uint64, [c_void_p]),
}


def sized(struct: Any) -> Any:
    """A struct whose `size` tells the library which fields this package knows."""
    return struct(size=ctypes.sizeof(struct))
