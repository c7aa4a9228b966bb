//! Hostile bytes for the target `zap_names` of `weir_objects::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    assert!(weir_objects::fuzz::run("zap_names", data));
});
