//! Hostile bytes for the target `posix_acl` of `weir_files::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    assert!(weir_files::fuzz::run("posix_acl", data));
});
