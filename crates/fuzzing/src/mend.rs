//! Mending what a fuzzer has changed, so that it gets deeper than the first checksum:
//! signatures, ids, sums and counts that no fuzzer guesses.
//!
//! In the corpora stands a sign in place of what only this run knows. Mending puts the
//! genuine thing there; whatever else an input says in such a place stays.

use bytes::BytesMut;

use tidewater_protocol::frame::{
    Frame, HEADER_BYTES, PREFACE, SYNC_CHANNEL, put_control, put_message, put_rows, take_frame,
};
use tidewater_protocol::message::{
    Control, DownloadEnd, DownloadMark, Hello, Proof, ResultEnd, SignIn, UploadEnd,
};
use tidewater_protocol::{Op, RowShape, RowsReader, UnpackedRow};

use crate::house::House;

/// Stands for the remote's id, and other ids of 16 bytes.
const REMOTE_ID: [u8; 16] = [0xa1; 16];
const UPLOAD_ID: [u8; 16] = [0xb1; 16];
const SCHEMA_HASH: [u8; 32] = [0xc1; 32];
const TOKEN: &[u8] = b"token";
const CHECKPOINT: &[u8] = b"checkpoint";

/// What only this run knows, as Ada's remote says it.
pub(crate) struct Mender {
    sign_in: SignIn,
    hello: Hello,
}

impl Mender {
    pub(crate) fn new(house: &mut House) -> Mender {
        let passed = house.record(0);
        let mut rest = BytesMut::from(&passed[0].up[PREFACE.len()..]);
        let mut next = || match take_frame(&mut rest) {
            Ok(Some(Frame::Control { control, .. })) => control,
            other => panic!("a remote begins with messages, not {other:?}"),
        };
        let (Some(Control::SignIn(sign_in)), Some(Control::Hello(hello))) = (next(), next()) else {
            panic!("a remote begins with a SignIn and a Hello");
        };
        Mender {
            sign_in: *sign_in,
            hello,
        }
    }

    /// What a remote sends, without the preface, with the genuine things in it.
    pub(crate) fn mend_up(&self, bytes: &[u8]) -> Vec<u8> {
        rewrite(bytes, &mut |control| {
            self.exchange(control, |sign, genuine, value| {
                if value == sign {
                    *value = genuine.to_vec();
                }
            });
        })
    }

    /// What was recorded, with signs in place of the genuine things.
    pub(crate) fn conceal_up(&self, bytes: &[u8]) -> Vec<u8> {
        rewrite(bytes, &mut |control| {
            self.exchange(control, |sign, genuine, value| {
                if value == genuine && !genuine.is_empty() {
                    *value = sign.to_vec();
                }
            });
        })
    }

    /// What a server sends: the ids and the sums that this session expects.
    pub(crate) fn mend_down(&self, bytes: &[u8], upload_id: &[u8]) -> Vec<u8> {
        self.exchange_down(
            bytes,
            |sign, genuine, value| {
                if value == sign {
                    *value = genuine.to_vec();
                }
            },
            upload_id,
        )
    }

    /// As [`Self::conceal_up`].
    pub(crate) fn conceal_down(&self, bytes: &[u8], upload_id: &[u8]) -> Vec<u8> {
        self.exchange_down(
            bytes,
            |sign, genuine, value| {
                if value == genuine && !genuine.is_empty() {
                    *value = sign.to_vec();
                }
            },
            upload_id,
        )
    }

    fn exchange(&self, control: &mut Control, with: impl Fn(&[u8], &[u8], &mut Vec<u8>)) {
        let hello = match control {
            Control::Hello(hello) => hello,
            Control::SignIn(sign_in) => {
                with(&REMOTE_ID, &self.sign_in.remote_id, &mut sign_in.remote_id);
                if let (Some(Proof::Token(genuine)), Some(Proof::Token(token))) =
                    (&self.sign_in.proof, &mut sign_in.proof)
                {
                    with(TOKEN, genuine, token);
                }
                return;
            }
            _ => return,
        };
        let genuine = &self.hello.subscriptions[0];
        for subscription in &mut hello.subscriptions {
            with(&UPLOAD_ID, &genuine.upload_id, &mut subscription.upload_id);
            with(
                CHECKPOINT,
                &genuine.checkpoint,
                &mut subscription.checkpoint,
            );
            with(
                &SCHEMA_HASH,
                &genuine.schema_hash,
                &mut subscription.schema_hash,
            );
        }
    }

    fn exchange_down(
        &self,
        bytes: &[u8],
        with: impl Fn(&[u8], &[u8], &mut Vec<u8>),
        upload_id: &[u8],
    ) -> Vec<u8> {
        rewrite(bytes, &mut |control| match control {
            Control::SignedIn(signed_in) => {
                with(
                    &REMOTE_ID,
                    &self.sign_in.remote_id,
                    &mut signed_in.remote_id,
                );
            }
            Control::ResultBegin(begin) => with(&UPLOAD_ID, upload_id, &mut begin.upload_id),
            _ => {}
        })
    }
}

/// The id of the upload that a remote begins.
pub(crate) fn upload_id(up: &[u8]) -> Vec<u8> {
    let mut rest = BytesMut::from(up);
    while let Ok(Some(frame)) = take_frame(&mut rest) {
        if let Frame::Control {
            control: Some(Control::UploadBegin(begin)),
            ..
        } = frame
        {
            return begin.upload_id;
        }
    }
    Vec::new()
}

/// What a remote says before it has heard anything: all but the acknowledgement.
pub(crate) fn one_flight(up: &[u8]) -> &[u8] {
    let mut rest = BytesMut::from(up);
    loop {
        let at = up.len() - rest.len();
        match take_frame(&mut rest) {
            Ok(Some(Frame::Control {
                control: Some(Control::Ack(_)),
                ..
            })) => return &up[..at],
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return up,
        }
    }
}

/// Frame by frame: every message changed, sums and counts made right. What is no frame is
/// left as it is; one that is announced longer than what is there ends where that ends.
fn rewrite(bytes: &[u8], change: &mut dyn FnMut(&mut Control)) -> Vec<u8> {
    let mut rest = BytesMut::from(bytes);
    let mut out = BytesMut::new();
    let mut sums = Sums::default();
    loop {
        shorten(&mut rest);
        match take_frame(&mut rest) {
            Ok(Some(Frame::Rows { channel, bytes })) => {
                if channel == SYNC_CHANNEL {
                    sums.rows(&bytes);
                }
                put_rows(&mut out, channel, &bytes);
            }
            Ok(Some(Frame::Control { channel, control })) => {
                let Some(mut control) = control else { continue };
                sums.control(&mut control);
                change(&mut control);
                put_control(&mut out, channel, control).expect("it fitted when it came");
            }
            Ok(Some(Frame::Message { channel, message })) => {
                put_message(&mut out, channel, &message).expect("it fitted when it came");
            }
            Ok(None) | Err(_) => {
                out.extend_from_slice(&rest);
                return out.to_vec();
            }
        }
    }
}

/// Makes the header of an incomplete frame announce what is there.
fn shorten(rest: &mut BytesMut) {
    let Some(there) = rest.len().checked_sub(HEADER_BYTES) else {
        return;
    };
    let announced = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
    if announced as usize > there {
        rest[..4].copy_from_slice(&(there as u32).to_le_bytes());
    }
}

/// The sums of a section of rows, upload, result or download.
#[derive(Default)]
struct Sums {
    checksum: crc32fast::Hasher,
    shape: Option<RowShape>,
    unread: Vec<u8>,
    /// By the number of the operation.
    counts: [u64; 16],
}

impl Sums {
    fn rows(&mut self, bytes: &[u8]) {
        self.checksum.update(bytes);
        let Some(shape) = &self.shape else { return };
        self.unread.extend_from_slice(bytes);
        let mut reader = RowsReader::new(shape, &self.unread);
        let mut row = UnpackedRow::default();
        while let Ok(true) = reader.next(&mut row) {
            self.counts[row.op.map_or(0, |op| op as usize)] += 1;
        }
        let read = reader.consumed();
        drop(row);
        self.unread.drain(..read);
    }

    fn count(&self, ops: &[Op]) -> u64 {
        ops.iter().map(|&op| self.counts[op as usize]).sum()
    }

    fn control(&mut self, control: &mut Control) {
        match control {
            Control::TableBegin(begin) => {
                self.shape = begin.shape();
                self.unread.clear();
            }
            Control::UploadBegin(_) | Control::ResultBegin(_) | Control::DownloadBegin(_) => {
                *self = Sums::default();
            }
            Control::UploadEnd(UploadEnd {
                inserts,
                updates,
                deletes,
                checksum,
                ..
            }) => {
                *inserts = self.count(&[Op::Insert]);
                *updates = self.count(&[Op::Update]);
                *deletes = self.count(&[Op::Delete]);
                *checksum = std::mem::take(self).checksum.finalize();
            }
            Control::ResultEnd(ResultEnd {
                conflicts,
                refused,
                checksum,
                ..
            }) => {
                *conflicts = self.count(&[Op::ConflictRow, Op::ConflictGone, Op::Merged]);
                *refused = self.count(&[Op::Refused]);
                *checksum = std::mem::take(self).checksum.finalize();
            }
            Control::DownloadEnd(DownloadEnd {
                upserts,
                removals,
                checksum,
                ..
            }) => {
                *upserts = self.count(&[Op::Upsert]);
                *removals = self.count(&[Op::Remove]);
                *checksum = std::mem::take(self).checksum.finalize();
            }
            Control::DownloadMark(DownloadMark { checksum, .. }) => {
                *checksum = self.checksum.clone().finalize();
            }
            _ => {}
        }
    }
}
