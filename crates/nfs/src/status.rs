//! Statuses of NFS version 3 (`nfsstat3`), and the mapping of file errors to them.

use weir_front::files::FileError;

/// The `nfsstat3` values that this server returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum Status {
    Ok = 0,
    Perm = 1,
    NoEnt = 2,
    Io = 5,
    Acces = 13,
    Exist = 17,
    XDev = 18,
    NotDir = 20,
    IsDir = 21,
    Inval = 22,
    FBig = 27,
    NoSpc = 28,
    Rofs = 30,
    MLink = 31,
    NameTooLong = 63,
    NotEmpty = 66,
    DQuot = 69,
    Stale = 70,
    BadHandle = 10_001,
    NotSync = 10_002,
    BadCookie = 10_003,
    NotSupp = 10_004,
    TooSmall = 10_005,
    BadType = 10_007,
    JukeBox = 10_008,
}

/// Maps file errors to NFS statuses.
pub fn status(error: &FileError) -> Status {
    match error {
        FileError::NotFound => Status::NoEnt,
        FileError::NotDirectory => Status::NotDir,
        FileError::IsDirectory => Status::IsDir,
        FileError::NameTooLong => Status::NameTooLong,
        FileError::Io { .. } => Status::Io,
        FileError::Stale => Status::Stale,
        FileError::Unsupported { .. } => Status::NotSupp,
        FileError::ReadOnly => Status::Rofs,
        FileError::NotPermitted => Status::Perm,
        FileError::Denied => Status::Acces,
        FileError::Exists => Status::Exist,
        FileError::NotEmpty => Status::NotEmpty,
        FileError::CrossDevice => Status::XDev,
        FileError::TooLarge => Status::FBig,
        FileError::NoSpace => Status::NoSpc,
        FileError::Quota => Status::DQuot,
        FileError::TooManyLinks => Status::MLink,
        FileError::Invalid { .. } => Status::Inval,
        FileError::Changed => Status::NotSync,
        FileError::TryAgain => Status::JukeBox,
    }
}
