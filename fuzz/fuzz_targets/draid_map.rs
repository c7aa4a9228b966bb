//! Hostile bytes for the target `draid_map` of `weir_blocks::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    assert!(weir_blocks::fuzz::run("draid_map", data));
});
