//! Hostile bytes for the target `free_tree` of `weir_objects::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    assert!(weir_objects::fuzz::run("free_tree", data));
});
