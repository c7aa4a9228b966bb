//! Hostile bytes, guided by coverage, for the body that `WEIR_FUZZ_TARGET` names.
#![no_main]

use std::sync::LazyLock;
use weir_conformance::fuzz::{Target, targets};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("WEIR_FUZZ_TARGET").unwrap_or_default();
    let found = targets().into_iter().find(|(own, _)| *own == name);
    found.unwrap_or_else(|| panic!("WEIR_FUZZ_TARGET has to name a body; '{name}' is none"))
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| (TARGET.1)(data));
