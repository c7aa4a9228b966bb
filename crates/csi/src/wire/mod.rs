//! Messages of the Container Storage Interface, version 1.13, as protocol buffers.
//!
//! Only messages that the services of this crate receive or send are here, without the fields that they ignore: protocol buffers
//! skip what a reader does not know. The source of the numbers is `csi.proto` of
//! <https://github.com/container-storage-interface/spec>. An enumeration or alternative that is nested in a message there has a name
//! of its own here.
//!
//! Rejected: code that is made at build time. It needs protoc or its replacement, some twenty crates, for five hundred lines.

pub mod common;
pub mod controller;
pub mod identity;
pub mod node;

/// An instant: `google.protobuf.Timestamp`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Timestamp {
    /// Seconds since 1970.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds after them.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// A flag that may be missing: `google.protobuf.BoolValue`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct BoolValue {
    /// The flag.
    #[prost(bool, tag = "1")]
    pub value: bool,
}

/// A number that may be missing: `google.protobuf.Int64Value`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Int64Value {
    /// The number.
    #[prost(int64, tag = "1")]
    pub value: i64,
}
