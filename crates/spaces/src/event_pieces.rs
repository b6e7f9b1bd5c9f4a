//! From pieces of a stream, cut anyhow, to chunks of whole events.

use bytes::{Bytes, BytesMut};

use tidewater_protocol::event::{EventError, announced};

/// The beginning of an event whose end has not come.
#[derive(Debug, Default)]
pub struct EventPieces {
    begun: BytesMut,
}

impl EventPieces {
    /// Takes the next piece. `publish` is given chunks that begin with whole events, and says how
    /// many bytes these take; a piece of whole events is given as it is.
    ///
    /// # Errors
    /// What `publish` says, or an event is announced that is too long.
    pub fn take<E: From<EventError>>(
        &mut self,
        mut piece: Bytes,
        most: usize,
        mut publish: impl FnMut(&Bytes) -> Result<usize, E>,
    ) -> Result<(), E> {
        while !self.begun.is_empty() && !piece.is_empty() {
            // First as much as says how long it is, then the rest of it.
            let size = announced(&self.begun);
            if let Some(bytes) = size.filter(|&size| size > most as u64) {
                return Err(EventError::TooLong { bytes, most }.into());
            }
            let size = size.map_or(4, |size| size as usize);
            let missing = size.saturating_sub(self.begun.len()).min(piece.len());
            self.begun.extend_from_slice(&piece.split_to(missing));
            if announced(&self.begun) == Some(self.begun.len() as u64) {
                let whole = std::mem::take(&mut self.begun).freeze();
                let consumed = publish(&whole)?;
                debug_assert_eq!(consumed, whole.len());
            }
        }
        if !piece.is_empty() {
            let consumed = publish(&piece)?;
            self.begun.extend_from_slice(&piece[consumed..]);
        }
        Ok(())
    }

    /// The memory that it takes.
    pub fn bytes(&self) -> usize {
        self.begun.capacity()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidewater_protocol::event::{EVENT_BYTES, EventsReader, put_event};

    use super::*;

    fn take(pieces: &mut EventPieces, piece: Bytes, out: &mut BytesMut) -> Result<(), EventError> {
        pieces.take(piece, EVENT_BYTES, |chunk| {
            let mut events = EventsReader::new(chunk, EVENT_BYTES);
            while events.next_event()?.is_some() {}
            out.extend_from_slice(&chunk[..events.consumed()]);
            Ok(events.consumed())
        })
    }

    #[test]
    fn an_event_that_is_too_long_or_short_is_refused_before_it_is_held() {
        for follow in [u32::MAX, EVENT_BYTES as u32, 2, 0] {
            for cut in [1, 3, 4, 5] {
                let bytes = [&follow.to_le_bytes()[..], &[0; 8]].concat();
                let bytes = Bytes::from(bytes);
                let mut pieces = EventPieces::default();
                let mut out = BytesMut::new();
                let taken = take(&mut pieces, bytes.slice(..cut), &mut out);
                let taken = taken.and_then(|()| take(&mut pieces, bytes.slice(cut..), &mut out));
                assert!(taken.is_err(), "{follow} {cut}");
                assert!(pieces.bytes() < 64);
            }
        }
    }

    proptest! {
        #[test]
        fn events_are_whole_however_the_stream_is_cut(
            sizes in proptest::collection::vec(0..200_usize, 1..20),
            cuts in proptest::collection::vec(1..50_usize, 1..100),
        ) {
            let mut stream = BytesMut::new();
            for size in sizes {
                put_event(&mut stream, "n/a", None, &vec![7; size]).unwrap();
            }
            let mut stream = stream.freeze();
            let (all, mut out) = (stream.clone(), BytesMut::new());
            let mut pieces = EventPieces::default();
            for cut in cuts {
                let piece = stream.split_to(cut.min(stream.len()));
                take(&mut pieces, piece, &mut out).unwrap();
            }
            take(&mut pieces, stream, &mut out).unwrap();
            prop_assert_eq!(&out[..], &all[..]);
            prop_assert_eq!(pieces.bytes(), 0);
        }
    }
}
