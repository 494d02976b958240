// SPDX-License-Identifier: Apache-2.0
// Made by generate.sh of include/tern.h and include/tern_engine.h.
pub const TERN_VERSION_MAJOR: u32 = 0;
pub const TERN_VERSION_MINOR: u32 = 1;
pub const TERN_VERSION_PATCH: u32 = 0;
pub const TERN_MAX_TOPK: u32 = 32;
pub const TERN_MAX_NICS: u32 = 4;
pub const TERN_OK: tern_error = 0;
pub const TERN_ERR_INVALID: tern_error = -1;
pub const TERN_ERR_STATE: tern_error = -2;
pub const TERN_ERR_MISMATCH: tern_error = -3;
pub const TERN_ERR_NOMEM: tern_error = -4;
pub const TERN_ERR_SYSTEM: tern_error = -5;
pub const TERN_ERR_BOOTSTRAP: tern_error = -6;
pub const TERN_ERR_TIMEOUT: tern_error = -7;
pub const TERN_ERR_PEER_DEAD: tern_error = -8;
pub const TERN_ERR_PEER_LEFT: tern_error = -9;
pub const TERN_ERR_CAPACITY: tern_error = -10;
pub const TERN_ERR_PROTOCOL: tern_error = -11;
pub const TERN_ERR_UNSUPPORTED: tern_error = -12;
pub const TERN_ERR_MEMBERS: tern_error = -13;
pub const TERN_ERR_EXPELLED: tern_error = -14;
pub const TERN_ERR_QUORUM: tern_error = -15;
pub const TERN_ERR_LOST_EXPERTS: tern_error = -16;
pub type tern_error = ::std::os::raw::c_int;
extern "C" {
    pub fn tern_strerror(code: ::std::os::raw::c_int) -> *const ::std::os::raw::c_char;
}
extern "C" {
    pub fn tern_last_error() -> *const ::std::os::raw::c_char;
}
extern "C" {
    pub fn tern_version() -> *const ::std::os::raw::c_char;
}
pub type tern_allgather_fn = ::core::option::Option<
    unsafe extern "C" fn(
        ctx: *mut ::std::os::raw::c_void,
        mine: *const ::std::os::raw::c_void,
        all: *mut ::std::os::raw::c_void,
        bytes: usize,
    ) -> ::std::os::raw::c_int,
>;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_boot {
    pub rank: ::std::os::raw::c_int,
    pub nr_ranks: ::std::os::raw::c_int,
    pub allgather: tern_allgather_fn,
    pub ctx: *mut ::std::os::raw::c_void,
    pub close: ::core::option::Option<unsafe extern "C" fn(ctx: *mut ::std::os::raw::c_void)>,
}
impl Default for tern_boot {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
extern "C" {
    pub fn tern_boot_env(boot: *mut tern_boot) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_boot_self(boot: *mut tern_boot) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_threads {
    _unused: [u8; 0],
}
extern "C" {
    pub fn tern_threads_create(
        nr_ranks: ::std::os::raw::c_int,
        wait_ms: ::std::os::raw::c_int,
        threads: *mut *mut tern_threads,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_threads_boot(
        threads: *mut tern_threads,
        rank: ::std::os::raw::c_int,
        boot: *mut tern_boot,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_threads_destroy(threads: *mut tern_threads);
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_rendezvous {
    pub set: ::core::option::Option<
        unsafe extern "C" fn(
            ctx: *mut ::std::os::raw::c_void,
            key: *const ::std::os::raw::c_char,
            value: *const ::std::os::raw::c_void,
            bytes: usize,
            wait_ms: ::std::os::raw::c_int,
        ) -> ::std::os::raw::c_int,
    >,
    pub get: ::core::option::Option<
        unsafe extern "C" fn(
            ctx: *mut ::std::os::raw::c_void,
            key: *const ::std::os::raw::c_char,
            value: *mut ::std::os::raw::c_void,
            bytes: *mut usize,
            wait_ms: ::std::os::raw::c_int,
        ) -> ::std::os::raw::c_int,
    >,
    pub ctx: *mut ::std::os::raw::c_void,
}
impl Default for tern_rendezvous {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
extern "C" {
    pub fn tern_rendezvous_env(rendezvous: *mut tern_rendezvous) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_boot_restarts() -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_group {
    _unused: [u8; 0],
}
pub const TERN_PATH_SELF: tern_path = 0;
pub const TERN_PATH_MAPPED: tern_path = 1;
pub const TERN_PATH_NONE: tern_path = 2;
pub const TERN_PATH_ENGINE: tern_path = 3;
pub type tern_path = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_group_config {
    pub size: usize,
    pub boot: tern_boot,
    pub wait_ms: ::std::os::raw::c_int,
    pub node: *const ::std::os::raw::c_char,
    pub transport: *const ::std::os::raw::c_char,
    pub force_engine: ::std::os::raw::c_int,
    pub elastic: ::std::os::raw::c_int,
    pub silence_ms: ::std::os::raw::c_int,
    pub rendezvous: tern_rendezvous,
}
impl Default for tern_group_config {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
extern "C" {
    pub fn tern_group_config_init_sized(config: *mut tern_group_config, size: usize);
}
extern "C" {
    pub fn tern_group_create(
        config: *const tern_group_config,
        group: *mut *mut tern_group,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_group_join(
        config: *const tern_group_config,
        group: *mut *mut tern_group,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_group_destroy(group: *mut tern_group) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_group_rank(group: *const tern_group) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_group_nr_ranks(group: *const tern_group) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_group_nr_nodes(group: *const tern_group) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_group_node(
        group: *const tern_group,
        rank: ::std::os::raw::c_int,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_group_path(
        group: *const tern_group,
        rank: ::std::os::raw::c_int,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_group_describe(group: *const tern_group) -> *const ::std::os::raw::c_char;
}
extern "C" {
    pub fn tern_group_allgather(
        group: *mut tern_group,
        mine: *const ::std::os::raw::c_void,
        all: *mut ::std::os::raw::c_void,
        bytes: usize,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct tern_view {
    pub size: usize,
    pub number: u64,
    pub nr_alive: u32,
    pub nr_gone: u32,
    pub alive: [u64; 4usize],
    pub gone: [u64; 4usize],
    pub change_ns: u64,
    pub joined: [u64; 4usize],
    pub nr_joined: u32,
    pub reserved: u32,
}
pub const TERN_CHANGE_LEAVE: tern_change = 1;
pub const TERN_CHANGE_EXPEL: tern_change = 2;
pub type tern_change = ::std::os::raw::c_uint;
extern "C" {
    pub fn tern_group_propose(
        group: *mut tern_group,
        change: ::std::os::raw::c_int,
        rank: ::std::os::raw::c_int,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_group_pending(group: *const tern_group) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_group_view_change(
        group: *mut tern_group,
        view: *mut tern_view,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_moe {
    _unused: [u8; 0],
}
pub const TERN_BF16: tern_dtype = 1;
pub const TERN_FP16: tern_dtype = 2;
pub const TERN_FP32: tern_dtype = 3;
pub const TERN_FP8_E4M3: tern_dtype = 4;
pub const TERN_BYTES: tern_dtype = 5;
pub type tern_dtype = ::std::os::raw::c_uint;
pub const TERN_SCALE_NONE: tern_scale = 0;
pub const TERN_SCALE_FP32: tern_scale = 1;
pub const TERN_SCALE_UE8M0: tern_scale = 2;
pub type tern_scale = ::std::os::raw::c_uint;
pub const TERN_AUTO: tern_mode = 0;
pub const TERN_LOW_LATENCY: tern_mode = 1;
pub const TERN_HIGH_THROUGHPUT: tern_mode = 2;
pub type tern_mode = ::std::os::raw::c_uint;
pub const TERN_PADDED: tern_layout = 1;
pub const TERN_CONTIGUOUS: tern_layout = 2;
pub const TERN_BY_SOURCE: tern_layout = 3;
pub type tern_layout = ::std::os::raw::c_uint;
pub const TERN_REDUCE_HOME: tern_reduce = 1;
pub const TERN_REDUCE_EXPERT: tern_reduce = 2;
pub type tern_reduce = ::std::os::raw::c_uint;
pub const TERN_WEIGHTS_COMBINE: tern_weights = 1;
pub const TERN_WEIGHTS_PASS: tern_weights = 2;
pub type tern_weights = ::std::os::raw::c_uint;
pub const TERN_DEVICE_CPU: tern_device = 0;
pub const TERN_DEVICE_CUDA: tern_device = 1;
pub type tern_device = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_placement {
    pub nr_physical: u32,
    pub logical: *const i32,
    pub rank: *const i32,
}
impl Default for tern_placement {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const TERN_REPLICAS_AUTO: tern_replicas = 0;
pub const TERN_REPLICAS_IN_TURN: tern_replicas = 1;
pub const TERN_REPLICAS_LEAST_LOADED: tern_replicas = 2;
pub type tern_replicas = ::std::os::raw::c_uint;
pub type tern_parallel_for = ::core::option::Option<
    unsafe extern "C" fn(
        ctx: *mut ::std::os::raw::c_void,
        nr: u32,
        body: ::core::option::Option<unsafe extern "C" fn(arg: *mut ::std::os::raw::c_void, i: u32)>,
        arg: *mut ::std::os::raw::c_void,
    ),
>;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_moe_config {
    pub size: usize,
    pub mode: tern_mode,
    pub layout: tern_layout,
    pub reduce: tern_reduce,
    pub weights: tern_weights,
    pub hidden: u32,
    pub nr_experts: u32,
    pub topk: u32,
    pub max_tokens: u32,
    pub x_dtype: tern_dtype,
    pub dispatch_dtype: tern_dtype,
    pub scale: tern_scale,
    pub payload_bytes: u32,
    pub combine_dtype: tern_dtype,
    pub nr_slots: u32,
    pub alignment: u32,
    pub capacity: u64,
    pub placement: tern_placement,
    pub replica_ranks: u32,
    pub wait_ms: ::std::os::raw::c_int,
    pub first_epoch: u32,
    pub nr_chunks: u32,
    pub chunk_bytes: u32,
    pub device: u16,
    pub caller_output: u16,
    pub nr_threads: u32,
    pub elastic: u32,
    pub parallel_for: tern_parallel_for,
    pub parallel_ctx: *mut ::std::os::raw::c_void,
    pub combine_floats: u32,
    pub masks: u32,
    pub replicas: u32,
    pub gate_rows: u32,
    pub late_weights: u32,
    pub slots_in_turn: u32,
    pub nr_sms: u32,
}
impl Default for tern_moe_config {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
extern "C" {
    pub fn tern_moe_config_init_sized(config: *mut tern_moe_config, size: usize);
}
extern "C" {
    pub fn tern_moe_create(
        group: *mut tern_group,
        config: *const tern_moe_config,
        moe: *mut *mut tern_moe,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_moe_destroy(moe: *mut tern_moe) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_moe_leave(moe: *mut tern_moe) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_moe_mask(moe: *mut tern_moe, rank: ::std::os::raw::c_int) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_moe_set_wait(
        moe: *mut tern_moe,
        wait_ms: ::std::os::raw::c_int,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_moe_place(
        moe: *mut tern_moe,
        version: u32,
        logical: *const i32,
        nr_physical: u32,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_moe_nr_local(moe: *const tern_moe) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_moe_mode(moe: *const tern_moe) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_moe_local_expert(moe: *const tern_moe, local: u32) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct tern_memory {
    pub size: usize,
    pub window_bytes: u64,
    pub output_bytes: u64,
    pub private_bytes: u64,
    pub staging_bytes: u64,
}
extern "C" {
    pub fn tern_moe_memory(moe: *const tern_moe, memory: *mut tern_memory)
        -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_dispatch {
    pub size: usize,
    pub slot: u32,
    pub nr_tokens: u32,
    pub x: *const ::std::os::raw::c_void,
    pub x_stride: usize,
    pub scales: *const ::std::os::raw::c_void,
    pub scales_stride: usize,
    pub topk_ids: *const ::std::os::raw::c_void,
    pub topk_ids_bits: u32,
    pub reserved: u32,
    pub topk_weights: *const f32,
    pub tag: u64,
    pub plan: u64,
}
impl Default for tern_dispatch {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct tern_row {
    pub rank: i32,
    pub token: i32,
    pub k: i32,
    pub weight: f32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_received {
    pub size: usize,
    pub into_x: *mut ::std::os::raw::c_void,
    pub into_scales: *mut ::std::os::raw::c_void,
    pub x: *mut ::std::os::raw::c_void,
    pub scales: *mut ::std::os::raw::c_void,
    pub counts: *const u32,
    pub offsets: *const u64,
    pub rows: *const tern_row,
    pub topk_ids: *const i32,
    pub topk_weights: *const f32,
    pub nr_rows: u64,
    pub extent: u64,
    pub wide_ids: *mut i64,
    pub expert_counts: *mut u32,
    pub expert_totals: *mut u64,
    pub waited_ns: *mut u64,
    pub gemm_scales: *mut ::std::os::raw::c_void,
    pub gemm_scales_stride: u32,
    pub counts_alignment: u32,
    pub into_counts: *mut u32,
    pub into_offsets: *mut u64,
    pub version: u32,
    pub reserved: u32,
}
impl Default for tern_received {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_combine {
    pub size: usize,
    pub slot: u32,
    pub unweighted: u32,
    pub y: *const ::std::os::raw::c_void,
    pub y_stride: usize,
    pub plan: u64,
    pub topk_weights: *const f32,
    pub floats: *const f32,
    pub out_floats: *mut f32,
    pub tag: u64,
    pub gated: u32,
    pub no_floats: u32,
}
impl Default for tern_combine {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
extern "C" {
    pub fn tern_dispatch_send(
        moe: *mut tern_moe,
        args: *const tern_dispatch,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_dispatch_recv(
        moe: *mut tern_moe,
        slot: u32,
        received: *mut tern_received,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_received_sizes(
        moe: *mut tern_moe,
        slot: u32,
        nr_rows: *mut u64,
        extent: *mut u64,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_combine_send(
        moe: *mut tern_moe,
        args: *const tern_combine,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_combine_recv(
        moe: *mut tern_moe,
        slot: u32,
        out: *mut ::std::os::raw::c_void,
        out_stride: usize,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_release(moe: *mut tern_moe, slot: u32) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_moe_owed(moe: *mut tern_moe, slot: u32, tag: *mut u64) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_dispatch(
        moe: *mut tern_moe,
        args: *const tern_dispatch,
        received: *mut tern_received,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_combine(
        moe: *mut tern_moe,
        args: *const tern_combine,
        out: *mut ::std::os::raw::c_void,
        out_stride: usize,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_plan_create(moe: *mut tern_moe, slot: u32, plan: *mut u64)
        -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_plan_beside {
    pub size: usize,
    pub nr_rows: u64,
    pub wide_ids: *mut i64,
    pub tokens: *mut i32,
    pub topk_ids: *mut i32,
}
impl Default for tern_plan_beside {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
extern "C" {
    pub fn tern_plan_create_beside(
        moe: *mut tern_moe,
        slot: u32,
        beside: *const tern_plan_beside,
        plan: *mut u64,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_plan_destroy(moe: *mut tern_moe, plan: u64) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_routes {
    pub size: usize,
    pub nr_ranks: u32,
    pub nr_experts: u32,
    pub topk: u32,
    pub nr_tokens: u32,
    pub topk_ids: *const ::std::os::raw::c_void,
    pub topk_ids_bits: u32,
    pub device: u32,
    pub stream: *mut ::std::os::raw::c_void,
    pub rank_tokens: *mut u32,
    pub expert_routes: *mut u32,
    pub in_rank: *mut u8,
    pub told: *mut u32,
    pub told_as: u32,
    pub finished: *mut u32,
}
impl Default for tern_routes {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
extern "C" {
    pub fn tern_count_routes(routes: *const tern_routes) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_gate {
    pub size: usize,
    pub nr_local: u32,
    pub tile_rows: u32,
    pub tiles: u32,
    pub whole: u32,
    pub wait_ns: u64,
    pub counts: *const u32,
    pub offsets: *const u64,
    pub words: *const u32,
    pub ready: *const u32,
    pub done: *mut u32,
    pub failed: *const u32,
}
impl Default for tern_gate {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
extern "C" {
    pub fn tern_moe_gate(
        moe: *mut tern_moe,
        slot: u32,
        gate: *mut tern_gate,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_moe_set_stream(
        moe: *mut tern_moe,
        slot: u32,
        stream: *mut ::std::os::raw::c_void,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_moe_set_nr_tokens_at(
        moe: *mut tern_moe,
        slot: u32,
        nr_tokens: *const u32,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_moe_set_sms(moe: *mut tern_moe, nr_sms: u32) -> ::std::os::raw::c_int;
}
pub const TERN_PHASE_COUNTS: tern_phase = 0;
pub const TERN_PHASE_DISPATCH: tern_phase = 1;
pub const TERN_PHASE_COMBINE: tern_phase = 2;
pub type tern_phase = ::std::os::raw::c_uint;
extern "C" {
    pub fn tern_moe_status(moe: *mut tern_moe) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct tern_wait_report {
    pub size: usize,
    pub rank: i32,
    pub peer: i32,
    pub nr_missing: u32,
    pub slot: u32,
    pub phase: i32,
    pub epoch_expected: u32,
    pub epoch_seen: u32,
    pub count_seen: u32,
    pub arrived: u64,
    pub expected: u64,
    pub waited_ns: u64,
    pub error: i32,
    pub reserved: i32,
}
extern "C" {
    pub fn tern_moe_wait_report(
        moe: *const tern_moe,
        report: *mut tern_wait_report,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct tern_stats {
    pub size: usize,
    pub rounds: u64,
    pub tokens: u64,
    pub routes: u64,
    pub rows: u64,
    pub rows_away: u64,
    pub tokens_away: u64,
    pub dispatch_bytes: u64,
    pub combine_bytes: u64,
    pub rows_received: u64,
    pub engine_bytes: u64,
}
extern "C" {
    pub fn tern_moe_stats(moe: *const tern_moe, stats: *mut tern_stats) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_moe_expert_load(
        moe: *const tern_moe,
        counts: *mut u64,
        nr: u32,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_moe_stats_reset(moe: *mut tern_moe) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_engine {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_region {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_remote {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_peers {
    _unused: [u8; 0],
}
pub type tern_op = u64;
pub type tern_done_fn = ::core::option::Option<
    unsafe extern "C" fn(
        ctx: *mut ::std::os::raw::c_void,
        error: ::std::os::raw::c_int,
        text: *const ::std::os::raw::c_char,
    ),
>;
pub type tern_immediate_fn = ::core::option::Option<
    unsafe extern "C" fn(
        ctx: *mut ::std::os::raw::c_void,
        peer: u32,
        immediate: u32,
    ) -> ::std::os::raw::c_int,
>;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_engine_config {
    pub size: usize,
    pub transport: *const ::std::os::raw::c_char,
    pub nr_nics: u32,
    pub ring_entries: u32,
    pub devices: [*const ::std::os::raw::c_char; 4usize],
    pub nr_operations: u32,
    pub depth: u32,
    pub peer_depth: u32,
    pub message_bytes: u32,
    pub message_credits: u32,
    pub core: ::std::os::raw::c_int,
    pub wait_ms: ::std::os::raw::c_int,
    pub heartbeat_ms: ::std::os::raw::c_int,
    pub timeout_ms: ::std::os::raw::c_int,
    pub stripe_bytes: u64,
    pub immediate: tern_immediate_fn,
    pub immediate_ctx: *mut ::std::os::raw::c_void,
}
impl Default for tern_engine_config {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
extern "C" {
    pub fn tern_engine_config_init_sized(config: *mut tern_engine_config, size: usize);
}
extern "C" {
    pub fn tern_engine_create(
        group: *mut tern_group,
        config: *const tern_engine_config,
        engine: *mut *mut tern_engine,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_engine_destroy(engine: *mut tern_engine) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_engine_rank(engine: *const tern_engine) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_engine_nr_peers(engine: *const tern_engine) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_engine_describe(engine: *const tern_engine) -> *const ::std::os::raw::c_char;
}
extern "C" {
    pub fn tern_engine_peer(engine: *const tern_engine, peer: u32) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct tern_engine_stats {
    pub size: usize,
    pub operations: u64,
    pub failed: u64,
    pub writes: u64,
    pub bytes: u64,
    pub again: u64,
    pub immediates: u64,
    pub immediates_lost: u64,
    pub messages_sent: u64,
    pub messages_received: u64,
    pub heartbeats_sent: u64,
    pub drains: u64,
    pub sleeps: u64,
    pub steps: u64,
}
extern "C" {
    pub fn tern_engine_stats(
        engine: *const tern_engine,
        stats: *mut tern_engine_stats,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct tern_descriptor {
    pub magic: u32,
    pub rank: u32,
    pub nr_nics: u32,
    pub reserved: u32,
    pub bytes: u64,
    pub nic: [tern_descriptor__bindgen_ty_1; 4usize],
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct tern_descriptor__bindgen_ty_1 {
    pub address: u64,
    pub bytes: u64,
    pub key: u64,
}
extern "C" {
    pub fn tern_engine_register(
        engine: *mut tern_engine,
        base: *mut ::std::os::raw::c_void,
        bytes: u64,
        region: *mut *mut tern_region,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_region_descriptor(
        region: *const tern_region,
        descriptor: *mut tern_descriptor,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_region_deregister(
        region: *mut tern_region,
        wait_ms: ::std::os::raw::c_int,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_engine_import(
        engine: *mut tern_engine,
        descriptor: *const tern_descriptor,
        remote: *mut *mut tern_remote,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_remote_forget(
        remote: *mut tern_remote,
        wait_ms: ::std::os::raw::c_int,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_peers_create(
        engine: *mut tern_engine,
        ranks: *const u32,
        remotes: *const *mut tern_remote,
        nr: u32,
        peers: *mut *mut tern_peers,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_peers_destroy(
        peers: *mut tern_peers,
        wait_ms: ::std::os::raw::c_int,
    ) -> ::std::os::raw::c_int;
}
pub const TERN_IMMEDIATE: tern_op_flags = 1;
pub const TERN_TRY: tern_op_flags = 2;
pub type tern_op_flags = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_write {
    pub size: usize,
    pub peer: u32,
    pub flags: u32,
    pub immediate: u32,
    pub reserved: u32,
    pub local: *mut tern_region,
    pub remote: *mut tern_remote,
    pub local_offset: u64,
    pub remote_offset: u64,
    pub bytes: u64,
    pub done: tern_done_fn,
    pub ctx: *mut ::std::os::raw::c_void,
}
impl Default for tern_write {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
extern "C" {
    pub fn tern_engine_write(
        engine: *mut tern_engine,
        write: *const tern_write,
        op: *mut tern_op,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_paged_write {
    pub size: usize,
    pub peer: u32,
    pub flags: u32,
    pub immediate: u32,
    pub nr_pages: u32,
    pub local: *mut tern_region,
    pub remote: *mut tern_remote,
    pub page_bytes: u64,
    pub local_offset: u64,
    pub remote_offset: u64,
    pub local_stride: u64,
    pub remote_stride: u64,
    pub local_pages: *const u32,
    pub remote_pages: *const u32,
    pub done: tern_done_fn,
    pub ctx: *mut ::std::os::raw::c_void,
}
impl Default for tern_paged_write {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
extern "C" {
    pub fn tern_engine_write_pages(
        engine: *mut tern_engine,
        write: *const tern_paged_write,
        op: *mut tern_op,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct tern_slice {
    pub local_offset: u64,
    pub remote_offset: u64,
    pub bytes: u64,
    pub immediate: u32,
    pub reserved: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_scatter {
    pub size: usize,
    pub flags: u32,
    pub reserved: u32,
    pub peers: *mut tern_peers,
    pub local: *mut tern_region,
    pub slices: *const tern_slice,
    pub done: tern_done_fn,
    pub ctx: *mut ::std::os::raw::c_void,
}
impl Default for tern_scatter {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
extern "C" {
    pub fn tern_engine_scatter(
        engine: *mut tern_engine,
        scatter: *const tern_scatter,
        op: *mut tern_op,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_expect {
    pub size: usize,
    pub flags: u32,
    pub immediate: u32,
    pub count: u64,
    pub peers: *mut tern_peers,
    pub done: tern_done_fn,
    pub ctx: *mut ::std::os::raw::c_void,
}
impl Default for tern_expect {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
extern "C" {
    pub fn tern_engine_expect(
        engine: *mut tern_engine,
        expect: *const tern_expect,
        op: *mut tern_op,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_engine_count(
        engine: *mut tern_engine,
        immediate: u32,
        count: *mut u64,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_barrier {
    pub size: usize,
    pub flags: u32,
    pub immediate: u32,
    pub peers: *mut tern_peers,
    pub done: tern_done_fn,
    pub ctx: *mut ::std::os::raw::c_void,
}
impl Default for tern_barrier {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
extern "C" {
    pub fn tern_engine_barrier(
        engine: *mut tern_engine,
        barrier: *const tern_barrier,
        op: *mut tern_op,
    ) -> ::std::os::raw::c_int;
}
pub const TERN_SIGNAL_DECOUPLED: tern_signal_policy = 3;
pub const TERN_SIGNAL_NIC_FENCE: tern_signal_policy = 4;
pub const TERN_SIGNAL_PERSEUS: tern_signal_policy = 5;
pub const TERN_SIGNAL_IMMEDIATE: tern_signal_policy = 6;
pub type tern_signal_policy = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_put {
    pub peer: u32,
    pub reserved: u32,
    pub local: *mut tern_region,
    pub remote: *mut tern_remote,
    pub local_offset: u64,
    pub remote_offset: u64,
    pub bytes: u64,
    pub signal_remote: *mut tern_remote,
    pub signal_offset: u64,
    pub signal: u64,
}
impl Default for tern_put {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
extern "C" {
    pub fn tern_engine_put_group(
        engine: *mut tern_engine,
        policy: tern_signal_policy,
        nr_puts: u32,
        done: tern_done_fn,
        ctx: *mut ::std::os::raw::c_void,
        group: *mut tern_op,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_engine_put(
        engine: *mut tern_engine,
        group: tern_op,
        put: *const tern_put,
        flags: u32,
    ) -> ::std::os::raw::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct tern_send {
    pub size: usize,
    pub peer: u32,
    pub flags: u32,
    pub data: *const ::std::os::raw::c_void,
    pub bytes: u32,
    pub reserved: u32,
    pub done: tern_done_fn,
    pub ctx: *mut ::std::os::raw::c_void,
}
impl Default for tern_send {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
extern "C" {
    pub fn tern_engine_send(
        engine: *mut tern_engine,
        send: *const tern_send,
        op: *mut tern_op,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_engine_recv(
        engine: *mut tern_engine,
        peer: *mut u32,
        data: *mut ::std::os::raw::c_void,
        bytes: *mut u32,
        wait_ms: ::std::os::raw::c_int,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_op_wait(
        engine: *mut tern_engine,
        op: tern_op,
        wait_ms: ::std::os::raw::c_int,
    ) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_op_poll(engine: *mut tern_engine, op: tern_op) -> ::std::os::raw::c_int;
}
extern "C" {
    pub fn tern_op_forget(engine: *mut tern_engine, op: tern_op) -> ::std::os::raw::c_int;
}
