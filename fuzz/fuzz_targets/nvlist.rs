//! Hostile bytes for the target `nvlist` of `weir_format::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    assert!(weir_format::fuzz::run("nvlist", data));
});
