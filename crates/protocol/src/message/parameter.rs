//! Parameters: what a remote says of itself, for the queries that decide what it holds.

use std::collections::HashSet;

use prost::Message;

/// How many parameters a subscription has at most.
pub const MAX_PARAMETERS: usize = 32;
/// How long the name of a parameter is at most, in bytes.
pub const MAX_PARAMETER_NAME: usize = 64;
/// How long the value of a parameter is at most, in bytes.
pub const MAX_PARAMETER_VALUE: usize = 1024;

/// A parameter of a subscription.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SubscriptionParameter {
    /// Its name, as queries have it: `month` of `{u.month}`.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
}

impl SubscriptionParameter {
    /// Whether this can be the name of a parameter: letters of ASCII, digits and underscores,
    /// no digit first.
    pub fn is_name(name: &str) -> bool {
        let mut bytes = name.bytes();
        let begins = bytes
            .next()
            .is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        begins
            && name.len() <= MAX_PARAMETER_NAME
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    }

    /// Whether this can be the value of a parameter. Not every database has text with a NUL in
    /// it.
    pub fn is_value(value: &str) -> bool {
        value.len() <= MAX_PARAMETER_VALUE && !value.contains('\0')
    }

    /// What is wrong with the parameters of a subscription, if anything.
    pub fn fault(parameters: &[SubscriptionParameter]) -> Option<&'static str> {
        if parameters.len() > MAX_PARAMETERS {
            return Some("too many parameters");
        }
        let mut seen = HashSet::new();
        parameters.iter().find_map(|it| match it {
            _ if !SubscriptionParameter::is_name(&it.name) => {
                Some("a parameter with an impossible name")
            }
            _ if !SubscriptionParameter::is_value(&it.value) => {
                Some("a parameter with an impossible value")
            }
            _ if !seen.insert(&it.name) => Some("a parameter twice"),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_values_and_their_number_have_limits() {
        let parameter = |name: &str, value: &str| SubscriptionParameter {
            name: name.into(),
            value: value.into(),
        };
        assert_eq!(
            SubscriptionParameter::fault(&[parameter("month", "it's {u.x}")]),
            None
        );
        assert!(SubscriptionParameter::fault(&[parameter("m", ""), parameter("m", "1")]).is_some());
        for name in ["", "1a", "a b", "a-b", "\u{e9}", &"a".repeat(65)] {
            assert!(
                SubscriptionParameter::fault(&[parameter(name, "1")]).is_some(),
                "{name}"
            );
        }
        for value in ["a\0b", &"a".repeat(1025)] {
            assert!(SubscriptionParameter::fault(&[parameter("a", value)]).is_some());
        }
        let many = (0..33).map(|it| parameter(&format!("p{it}"), "1"));
        assert!(SubscriptionParameter::fault(&many.collect::<Vec<_>>()).is_some());
    }
}
