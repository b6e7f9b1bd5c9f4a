//! What the channel of calls carries, and arguments as JSON: what was understood is said again in
//! the same words, and comes to the same values whichever way it takes.

use bytes::Bytes;
use prost::Message;

use tidewater_protocol::argument::{ARGUMENT_TYPES, argument_type, coerce, given};
use tidewater_protocol::json;
use tidewater_protocol::message::{Answer, Argument, Call, CallFailed, CallKind};

use crate::input::Input;

/// The first byte says what the others are: a payload by its flags, or a JSON object.
///
/// # Panics
/// A promise is broken.
pub fn calls(data: &[u8]) {
    let mut input = Input::new(data);
    let flags = input.byte();
    let bytes = Bytes::copy_from_slice(input.rest());
    match CallKind::from_flags(flags) {
        Some(CallKind::Call | CallKind::OneWay) => {
            if let Some(call) = again::<Call>(bytes) {
                call.arguments.iter().for_each(argument);
                object(&call.arguments);
            }
        }
        Some(CallKind::Answer | CallKind::Piece) => {
            if let Some(answer) = again::<Answer>(bytes) {
                answered(&answer);
            }
        }
        Some(CallKind::Failed) => {
            if let Some(failed) = again::<CallFailed>(bytes)
                && let Some(code) = failed.code()
            {
                assert_eq!(code.number(), failed.code);
            }
        }
        _ => text(&bytes),
    }
}

/// The message, if it is one, which is the same when it is said again.
fn again<M: Message + Default + Clone>(bytes: Bytes) -> Option<M> {
    let message = M::decode(bytes).ok()?;
    let said = message.encode_to_vec();
    // Compared as bytes: not every number equals itself.
    let heard = M::decode(&said[..]).expect("it was just encoded");
    assert_eq!(heard.encode_to_vec(), said);
    Some(message)
}

/// Whatever a procedure declares, what comes of an argument stays what it is on the way to a
/// provider.
fn argument(argument: &Argument) {
    let Some(said) = &argument.given else { return };
    for name in ARGUMENT_TYPES {
        let declared = argument_type(name).expect("it is a type of arguments");
        let Some(value) = coerce(declared, said) else {
            continue;
        };
        let passed_on = given(declared, &value).expect("a value that is not NULL");
        let there = coerce(declared, &passed_on);
        assert_eq!(format!("{there:?}"), format!("{:?}", Some(value)), "{name}");
    }
}

/// Arguments as JSON are arguments again, each under its name.
fn object(arguments: &[Argument]) {
    let object = json::object(arguments);
    let text = serde_json::to_string(&object).expect("JSON can be written");
    // Not if it is nested deeper than anybody reads.
    let Ok(read) = serde_json::from_str(&text) else {
        return;
    };
    assert_eq!(object, read);
    assert!(json::arguments(&read).len() <= arguments.len());
}

/// An answer that can be read can be shown, and its JSON can be an answer.
fn answered(answer: &Answer) {
    let rows = answer.unpack();
    let shown = json::answer(answer);
    assert_eq!(rows.is_ok(), shown.is_ok());
    if let Ok(shown) = shown {
        let again = json::to_answer(&shown);
        assert!(again.unpack().is_ok());
    }
}

/// What an application may have written into an outbox.
fn text(bytes: &[u8]) {
    let Ok(read) = serde_json::from_slice(bytes) else {
        return;
    };
    let arguments = json::arguments(&read);
    assert_eq!(arguments.len(), read.len());
    arguments.iter().for_each(argument);
    let once = json::object(&arguments);
    let twice = json::object(&json::arguments(&once));
    assert_eq!(once, twice, "what was an argument stays one");
}
