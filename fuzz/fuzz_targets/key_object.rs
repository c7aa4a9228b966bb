//! Hostile bytes for the target `key_object` of `weir_objects::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    assert!(weir_objects::fuzz::run("key_object", data));
});
