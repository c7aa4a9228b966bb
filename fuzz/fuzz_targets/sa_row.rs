//! Hostile bytes for the target `sa_row` of `weir_objects::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    assert!(weir_objects::fuzz::run("sa_row", data));
});
