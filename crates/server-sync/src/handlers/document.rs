//! What handlers are sent: a JSON object that says what it is about, and the rows.

use bytes::Bytes;
use serde_json::{Map, Value as Json, json};

use tidewater_centre::SyncContext;

use super::{JSON, LINES, key_of};
use tidewater_server_config::{HandlerEvent, HandlerFormat};

/// Of which sync, and whose it is.
#[derive(Clone, Debug)]
pub struct About {
    /// The publication.
    pub publication: String,
    /// For whom it is asked.
    pub context: SyncContext,
    /// What people call the device; empty if nobody has named it, and where an operator sends
    /// something again.
    pub device_name: String,
    /// The same for everything that is asked in one sync.
    pub sync_id: String,
}

/// A request, as it is sent however often.
#[derive(Debug)]
pub struct Document {
    /// What it is asked at.
    pub event: HandlerEvent,
    /// By which a handler recognizes what it was sent before.
    pub key: String,
    /// What is sent.
    pub body: Bytes,
    format: HandlerFormat,
}

impl About {
    /// What every request says.
    pub fn head(&self, event: HandlerEvent) -> Map<String, Json> {
        let claims = self.context.claims.iter();
        let claims: Map<String, Json> = claims
            .map(|(name, value)| (name.to_owned(), Json::from(value)))
            .collect();
        let mut head = Map::new();
        head.insert("event".into(), event.name().into());
        head.insert("publication".into(), self.publication.as_str().into());
        head.insert("user".into(), self.context.user.as_str().into());
        head.insert("claims".into(), claims.into());
        head.insert(
            "remote_id".into(),
            self.context.remote_id.to_string().into(),
        );
        if !self.device_name.is_empty() {
            head.insert("device_name".into(), self.device_name.as_str().into());
        }
        head.insert("sync_id".into(), self.sync_id.as_str().into());
        head
    }
}

impl Document {
    /// One object.
    pub fn of(event: HandlerEvent, mut head: Map<String, Json>, key: &str) -> Document {
        head.insert("idempotency_key".into(), key.into());
        Document {
            event,
            key: key.to_owned(),
            body: Json::Object(head).to_string().into(),
            format: HandlerFormat::Json,
        }
    }

    /// An object, and rows that are written already. Its key is that of the rows: what the first
    /// and the last of them have, and how many there are.
    pub fn with_rows(
        event: HandlerEvent,
        mut head: Map<String, Json>,
        format: HandlerFormat,
        rows: &[String],
        (first, last): (&str, &str),
    ) -> Document {
        let count = rows.len().to_string();
        let key = key_of(&[first.as_bytes(), last.as_bytes(), count.as_bytes()]);
        head.insert("idempotency_key".into(), key.as_str().into());
        let body = match format {
            HandlerFormat::Lines => {
                let mut body = Json::Object(head).to_string();
                for row in rows {
                    body.push('\n');
                    body.push_str(row);
                }
                body.push('\n');
                body
            }
            HandlerFormat::Json => {
                let mut body = Json::Object(head).to_string();
                // It is an object, and not an empty one.
                body.pop();
                body.push_str(",\"rows\":[");
                body.push_str(&rows.join(","));
                body.push_str("]}");
                body
            }
        };
        Document {
            event,
            key,
            body: body.into(),
            format,
        }
    }

    pub(crate) fn content_type(&self) -> &'static str {
        match self.format {
            HandlerFormat::Json => JSON,
            HandlerFormat::Lines => LINES,
        }
    }
}

/// The objects of an answer: those of its list, or of its lines.
///
/// # Errors
/// It is something else: what, and what was expected.
pub(crate) fn objects(
    reply: &super::HandlerReply,
    list: &str,
) -> Result<Vec<Map<String, Json>>, String> {
    let is_lines = reply
        .content_type
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        == LINES;
    let object = |json: Json, at: usize| match json {
        Json::Object(object) => Ok(object),
        other => Err(format!(
            "number {} of its rows is {}, and an object is expected",
            at + 1,
            kind(&other)
        )),
    };
    if is_lines {
        let text = std::str::from_utf8(&reply.body).map_err(|_| "it answers with no UTF-8")?;
        let lines = text.lines().filter(|it| !it.trim().is_empty()).enumerate();
        let objects = lines.map(|(at, line)| {
            let json = serde_json::from_str(line);
            object(
                json.map_err(|error| format!("line {} is no JSON: {error}", at + 1))?,
                at,
            )
        });
        return objects.collect();
    }
    let mut whole = whole(reply)?;
    match whole.remove(list) {
        Some(Json::Array(rows)) => {
            let rows = rows.into_iter().enumerate();
            rows.map(|(at, it)| object(it, at)).collect()
        }
        other => Err(format!(
            "its answer has {} as {list:?}, and a list is expected: {}",
            other.map_or("nothing", |it| kind(&it)),
            json!({ list: [] })
        )),
    }
}

/// The object that an answer is.
///
/// # Errors
/// It is none.
pub(crate) fn whole(reply: &super::HandlerReply) -> Result<Map<String, Json>, String> {
    match serde_json::from_slice(&reply.body) {
        Ok(Json::Object(object)) => Ok(object),
        Ok(other) => Err(format!(
            "it answers with {}, and an object is expected",
            kind(&other)
        )),
        Err(_) if reply.body.is_empty() => {
            Err("it answers with nothing, and an object is expected".into())
        }
        Err(error) => Err(format!("it answers with no JSON: {error}")),
    }
}

/// What a JSON value is, for people.
pub(crate) fn kind(json: &Json) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "true or false",
        Json::Number(_) => "a number",
        Json::String(_) => "text",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}
