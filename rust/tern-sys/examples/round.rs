// SPDX-License-Identifier: Apache-2.0
//! Each rank sends its tokens to their experts, which double what they get, and sums what comes home:
//! `tern run -n 4 -- target/debug/examples/round`. Alone it is one rank.
use std::error::Error;
use std::ffi::CStr;
use std::os::raw::c_int;
use std::ptr::null_mut;
use tern_sys::*;

const HIDDEN: usize = 64;
const TOKENS: usize = 5;
const EXPERTS: usize = 8;
const TOPK: usize = 2;

fn checked(what: &str, code: c_int) -> Result<c_int, Box<dyn Error>> {
    if code >= 0 {
        return Ok(code);
    }
    let text = unsafe { CStr::from_ptr(tern_last_error()) };
    Err(format!("{what}: {}", text.to_string_lossy()).into())
}

/// Rows that the library reads and writes have to lie at multiples of 16 bytes.
#[repr(C, align(16))]
struct Rows([[f32; HIDDEN]; TOKENS]);

struct Ranks {
    group: *mut tern_group,
    moe: *mut tern_moe,
}

impl Drop for Ranks {
    fn drop(&mut self) {
        unsafe {
            tern_moe_destroy(self.moe);
            tern_group_destroy(self.group);
        }
    }
}

fn join() -> Result<Ranks, Box<dyn Error>> {
    let mut ranks = Ranks { group: null_mut(), moe: null_mut() };
    unsafe {
        let mut group_config = tern_group_config::default();
        tern_group_config_init(&mut group_config);
        checked("boot", tern_boot_env(&mut group_config.boot))?;
        checked("group", tern_group_create(&group_config, &mut ranks.group))?;
        let mut config = tern_moe_config::default();
        tern_moe_config_init(&mut config);
        config.hidden = HIDDEN as u32;
        config.nr_experts = EXPERTS as u32;
        config.topk = TOPK as u32;
        config.max_tokens = TOKENS as u32;
        config.x_dtype = TERN_FP32;
        config.dispatch_dtype = TERN_FP32;
        config.combine_dtype = TERN_FP32;
        checked("exchange", tern_moe_create(ranks.group, &config, &mut ranks.moe))?;
    }
    Ok(ranks)
}

fn main() -> Result<(), Box<dyn Error>> {
    let ranks = join()?;
    let rank = unsafe { tern_group_rank(ranks.group) } as usize;
    let mut x = Rows([[0.0; HIDDEN]; TOKENS]);
    let mut out = Rows([[0.0; HIDDEN]; TOKENS]);
    let mut ids = [[0i32; TOPK]; TOKENS];
    for t in 0..TOKENS {
        x.0[t] = std::array::from_fn(|h| (1 + rank * 1000 + t * HIDDEN + h) as f32);
        ids[t] = [((rank + t) % EXPERTS) as i32, ((rank + t + 3) % EXPERTS) as i32];
    }

    let dispatch = tern_dispatch {
        size: std::mem::size_of::<tern_dispatch>(),
        nr_tokens: TOKENS as u32,
        x: x.0.as_ptr().cast(),
        topk_ids: ids.as_ptr().cast(),
        topk_ids_bits: 32,
        ..Default::default() // weights are all 1
    };
    let mut received = tern_received {
        size: std::mem::size_of::<tern_received>(),
        ..Default::default()
    };
    checked("dispatch", unsafe { tern_dispatch(ranks.moe, &dispatch, &mut received) })?;
    let nr_values = received.extent as usize * HIDDEN;
    if nr_values > 0 {
        let rows = unsafe { std::slice::from_raw_parts_mut(received.x.cast::<f32>(), nr_values) };
        rows.iter_mut().for_each(|value| *value *= 2.0);
    }
    let combine = tern_combine {
        size: std::mem::size_of::<tern_combine>(),
        y: received.x,
        ..Default::default()
    };
    checked("combine", unsafe { tern_combine(ranks.moe, &combine, out.0.as_mut_ptr().cast(), 0) })?;
    for (home, sent) in out.0.iter().flatten().zip(x.0.iter().flatten()) {
        if *home != 4.0 * sent {
            return Err(format!("{home} came home for {sent}").into());
        }
    }
    let nr_ranks = unsafe { tern_group_nr_ranks(ranks.group) };
    println!("rank {rank} of {nr_ranks}: {} rows here, {TOKENS} tokens home", received.nr_rows);
    Ok(())
}
