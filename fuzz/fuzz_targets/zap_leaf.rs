//! Hostile bytes for the target `zap_leaf` of `weir_format::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    assert!(weir_format::fuzz::run("zap_leaf", data));
});
