//! Devices by the names that people give them: what is told beside a remote id, and which remote is
//! meant by a name.

use std::collections::HashMap;

use serde::Serialize;
use tidewater_protocol::RemoteId;
use tidewater_terminal::Failure;

use crate::centre::OpenCentre;

/// What the devices of a centre are called.
pub(crate) struct DeviceNames(HashMap<RemoteId, String>);

impl DeviceNames {
    pub(crate) fn read(centre: &OpenCentre) -> Result<DeviceNames, Failure> {
        let remotes = centre.remotes()?.into_iter();
        let names = remotes.map(|it| (it.id, it.device_name));
        Ok(DeviceNames(names.collect()))
    }

    /// The name of a remote's device; empty if it has none, or is not there any more.
    pub(crate) fn name(&self, id: RemoteId) -> &str {
        self.0.get(&id).map_or("", String::as_str)
    }

    /// The remote, for people: by its name, too.
    pub(crate) fn describe(&self, id: RemoteId) -> String {
        match self.name(id) {
            "" => id.to_string(),
            name => format!("{id} ({name})"),
        }
    }
}

/// An object of JSON about a remote, with the name of its device.
#[derive(Serialize)]
pub(crate) struct OfDevice<'a, T> {
    #[serde(flatten)]
    record: T,
    device_name: &'a str,
}

impl<'a, T> OfDevice<'a, T> {
    pub(crate) fn new(record: T, names: &'a DeviceNames, id: RemoteId) -> OfDevice<'a, T> {
        let device_name = names.name(id);
        OfDevice {
            record,
            device_name,
        }
    }
}

/// The remote that is meant by an id, or by the name of a device if only one is called so.
pub(crate) fn find_remote(centre: &OpenCentre, meant: &str) -> Result<RemoteId, Failure> {
    if let Ok(id) = meant.parse() {
        return Ok(id);
    }
    let mut called: Vec<_> = centre.remotes()?;
    called.retain(|it| it.device_name == meant);
    match &called[..] {
        [only] => Ok(only.id),
        [] => Err(Failure::usage(
            format!("{meant:?} is not a remote id, and no device is called so"),
            "see: tidewater remote list",
        )),
        several => {
            let ids = several.iter().map(|it| format!("{} of {}", it.id, it.user));
            Err(Failure::usage(
                format!(
                    "{} devices are called {meant:?}: {}",
                    several.len(),
                    ids.collect::<Vec<_>>().join(", ")
                ),
                "name the one that you mean by its id",
            ))
        }
    }
}
