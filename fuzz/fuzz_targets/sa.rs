//! Hostile bytes for the target `sa` of `weir_format::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    assert!(weir_format::fuzz::run("sa", data));
});
