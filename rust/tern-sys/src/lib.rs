// SPDX-License-Identifier: Apache-2.0
//! The C ABI of Tern, as `include/tern.h` and `include/tern_engine.h` declare it: the contract stands there. `bindings.rs` is made by
//! `generate.sh` and committed, so that neither bindgen nor any other crate is needed.
#![allow(non_camel_case_types, non_upper_case_globals, non_snake_case, clippy::all)]

include!("bindings.rs");

/// tern_group_config_init, an inline function in C.
///
/// # Safety
/// `config` is memory for one.
pub unsafe fn tern_group_config_init(config: *mut tern_group_config) {
    tern_group_config_init_sized(config, std::mem::size_of::<tern_group_config>());
}

/// tern_moe_config_init, an inline function in C.
///
/// # Safety
/// `config` is memory for one.
pub unsafe fn tern_moe_config_init(config: *mut tern_moe_config) {
    tern_moe_config_init_sized(config, std::mem::size_of::<tern_moe_config>());
}

/// tern_engine_config_init, an inline function in C.
///
/// # Safety
/// `config` is memory for one.
pub unsafe fn tern_engine_config_init(config: *mut tern_engine_config) {
    tern_engine_config_init_sized(config, std::mem::size_of::<tern_engine_config>());
}
