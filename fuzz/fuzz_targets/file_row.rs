//! Hostile bytes for the target `file_row` of `weir_files::fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    assert!(weir_files::fuzz::run("file_row", data));
});
