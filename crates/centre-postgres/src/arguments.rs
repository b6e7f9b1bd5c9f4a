//! The parameters of statements that an operator wrote.

use bytes::BytesMut;
use tokio_postgres::Statement;
use tokio_postgres::types::{Format, IsNull, ToSql, Type, to_sql_checked};

use tidewater_protocol::{ColumnType, Datum, Value, ValueRef};

use super::values::PostgresType;
use tidewater_centre::ProcedureCall;
use tidewater_centre::engine::script::Script;
use tidewater_centre::error::CentreError;

/// A value as it is sent.
#[derive(Debug)]
pub(super) enum EncodedArgument {
    Null,
    Binary(Vec<u8>),
    Text(String),
}

/// The parameters of a script for a call.
pub(super) fn of_call(
    call: &ProcedureCall,
    script: &Script,
    prepared: &Statement,
) -> Vec<EncodedArgument> {
    let values = call.parameters(script).into_iter().zip(prepared.params());
    let arguments = values.map(|((column_type, value), of)| argument(column_type, &value, of));
    arguments.collect()
}

/// A value in the binary form of its own kind.
pub(super) fn encoded(
    kind: PostgresType,
    value: &Datum<'_>,
) -> Result<EncodedArgument, CentreError> {
    if *value == Datum::Null {
        return Ok(EncodedArgument::Null);
    }
    let mut encoded = Vec::new();
    let fits = kind.encode(value, &mut encoded);
    fits.map_err(|_| CentreError::Internal {
        message: format!("{value:.40} was to be sent as a value of kind {kind:?}"),
    })?;
    // Without the length.
    Ok(EncodedArgument::Binary(encoded.split_off(4)))
}

/// A value in the binary form of the type that PostgreSQL wants, or as text that it makes one of.
pub(super) fn argument(column_type: ColumnType, value: &Value, of: &Type) -> EncodedArgument {
    if *value == Value::Null {
        return EncodedArgument::Null;
    }
    let (datum, _) = column_type.datum(value.as_ref());
    let kind = PostgresType::from_oid(of.oid());
    let mut encoded = Vec::new();
    if kind != PostgresType::Other && kind.encode(&datum, &mut encoded).is_ok() {
        // Without the length.
        return EncodedArgument::Binary(encoded.split_off(4));
    }
    EncodedArgument::Text(match datum.stored(&mut String::new()) {
        ValueRef::Blob(bytes) => {
            let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
            format!("\\x{}", digits.collect::<String>())
        }
        ValueRef::Text(text) => text.to_owned(),
        ValueRef::Integer(integer) => integer.to_string(),
        ValueRef::Real(real) => real.to_string(),
        ValueRef::Null => return EncodedArgument::Null,
    })
}

impl ToSql for EncodedArgument {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            EncodedArgument::Null => return Ok(IsNull::Yes),
            EncodedArgument::Binary(bytes) => out.extend_from_slice(bytes),
            EncodedArgument::Text(text) => out.extend_from_slice(text.as_bytes()),
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        match self {
            EncodedArgument::Text(_) => Format::Text,
            _ => Format::Binary,
        }
    }

    to_sql_checked!();
}
