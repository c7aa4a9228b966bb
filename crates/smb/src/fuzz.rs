//! Fuzz targets: each must return for any input, in time and memory bounded by the input's length.

use crate::leftovers::{parse_pid, program_of, real_uid};
use crate::share::{Share, check_name};
use crate::status::Status;
use crate::users;
use std::path::Path;

/// Name and body of a fuzz target.
pub type Target = (&'static str, fn(&[u8]));

/// All fuzz targets of this crate.
pub const TARGETS: &[Target] = &[("smb_status", status_target), ("smb_values", values_target)];

fn status_target(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(status) = Status::decode(&text) {
        let shares: usize = status.connections.iter().map(|connection| connection.shares.len()).sum();
        assert!(status.connections.len() + shares <= text.len());
    }
}

fn values_target(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    parse_pid(&text);
    real_uid(&text);
    crate::logons::Logon::decode(&text);
    crate::logons::parse(&text);
    let _ = program_of(data, Path::new("/run/smb.conf"));
    for user in users::parse_list(&text) {
        assert!(users::check_name(&user.name).is_ok());
    }
    if check_name(&text).is_ok() {
        assert!(!text.contains(['\n', ']', '%']));
    }
    let share = Share { name: "s".into(), path: text.as_ref().into(), ..Share::default() };
    if share.check().is_ok() {
        assert!(text.starts_with('/') && !text.contains('\n'));
    }
}
