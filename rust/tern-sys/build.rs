// SPDX-License-Identifier: Apache-2.0
//! Asks pkg-config where libtern is. TERN_LIB_DIR: the folder that holds it, in place of that. TERN_STATIC=1: the archive.
use std::env;
use std::process::Command;

/// What pkg-config says, in words; its own message where it fails.
fn pkg_config(arguments: &[&str]) -> Result<Vec<String>, String> {
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".into());
    let said = Command::new(&program)
        .args(arguments)
        .output()
        .map_err(|error| format!("{program} cannot be run: {error}"))?;
    if !said.status.success() {
        return Err(String::from_utf8_lossy(&said.stderr).into_owned());
    }
    Ok(String::from_utf8_lossy(&said.stdout).split_whitespace().map(String::from).collect())
}

fn folders() -> Vec<String> {
    if let Ok(folder) = env::var("TERN_LIB_DIR") {
        return vec![folder];
    }
    match pkg_config(&["--libs-only-L", "--keep-system-libs", "tern >= 0.1"]) {
        Ok(words) => words.iter().filter_map(|w| w.strip_prefix("-L").map(String::from)).collect(),
        Err(cause) => panic!("libtern was not found; install it, or set PKG_CONFIG_PATH or TERN_LIB_DIR: {cause}"),
    }
}

fn main() {
    for name in ["TERN_LIB_DIR", "TERN_STATIC", "PKG_CONFIG", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    for folder in folders() {
        println!("cargo:rustc-link-search=native={folder}");
        println!("cargo:lib={folder}");
    }
    if env::var("TERN_STATIC").map_or(false, |v| v == "1") {
        println!("cargo:rustc-link-lib=static=tern");
        for library in ["pthread", "dl", "m"] {
            println!("cargo:rustc-link-lib={library}");
        }
    } else {
        println!("cargo:rustc-link-lib=dylib=tern");
    }
}
