//! What each control message is called.

use super::Control;

impl Control {
    /// The message's name, for messages to people.
    pub fn name(&self) -> &'static str {
        match self {
            Control::SignIn(_) => "SignIn",
            Control::SignedIn(_) => "SignedIn",
            Control::Hello(_) => "Hello",
            Control::Welcome(_) => "Welcome",
            Control::UploadBegin(_) => "UploadBegin",
            Control::TableBegin(_) => "TableBegin",
            Control::UploadEnd(_) => "UploadEnd",
            Control::RequestBegin(_) => "RequestBegin",
            Control::DownloadRequest(_) => "DownloadRequest",
            Control::ResultBegin(_) => "ResultBegin",
            Control::ResultEnd(_) => "ResultEnd",
            Control::DownloadBegin(_) => "DownloadBegin",
            Control::DownloadMark(_) => "DownloadMark",
            Control::DownloadEnd(_) => "DownloadEnd",
            Control::SyncEnd(_) => "SyncEnd",
            Control::Ack(_) => "Ack",
            Control::Busy(_) => "Busy",
            Control::Failure(_) => "Failure",
            Control::Credit(_) => "Credit",
            Control::Ping(_) => "Ping",
            Control::Pong(_) => "Pong",
            Control::Waiting(_) => "Waiting",
            Control::Cancel(_) => "Cancel",
            Control::CompareTable(_) => "CompareTable",
        }
    }
}
