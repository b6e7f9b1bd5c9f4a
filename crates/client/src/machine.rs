//! The state machine of a link's connection: with syncs where the feature `sync` is on, and the same
//! without them where it is off.

#[cfg(not(feature = "sync"))]
pub(crate) use tidewater_connection::device::{
    DeviceConnection as LinkMachine, DeviceEvent as LinkEvent,
};
#[cfg(feature = "sync")]
pub(crate) use tidewater_remote::{DriverEvent as LinkEvent, RemoteConnection as LinkMachine};
