//! Hostile bytes for the target `space_map` of `weir_format::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    assert!(weir_format::fuzz::run("space_map", data));
});
