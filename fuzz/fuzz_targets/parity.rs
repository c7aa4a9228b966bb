//! Hostile bytes for the target `parity` of `weir_codec::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    assert!(weir_codec::fuzz::run("parity", data));
});
