//! Hostile bytes for the target `dedup_value` of `weir_objects::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    assert!(weir_objects::fuzz::run("dedup_value", data));
});
