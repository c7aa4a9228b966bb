//! Predictions by simulation: the engine on modelled hardware in virtual time.
//!
//! [`simulate::simulate`] runs a load on a server that is described by [`simulate::server::ServerSpec`]; the drives, links and
//! processors of [`hardware`] determine the time.

pub mod experiments;
pub mod hardware;
pub mod plan;
pub mod simulate;
