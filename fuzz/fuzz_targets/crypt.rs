//! Hostile bytes for the target `crypt` of `weir_codec::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    assert!(weir_codec::fuzz::run("crypt", data));
});
