//! Who uses remotes and programs, and what each of them may.

/// Users that there are; everybody has some regions.
pub(crate) const USERS: &[&str] = &["ada", "bob", "cleo"];

/// Everybody's password.
pub(crate) const PASSWORD: &str = "correct horse";

/// Who belongs to the staff, of those who use remotes. The others may call and hear less.
pub(crate) const STAFF: &str = "ada";

/// As whom programs of the office sign in.
pub(crate) const OFFICE: &str = "office";

/// The code of rows that a user holds of any region, if there is one.
pub(crate) fn liked(user: &str) -> Option<&'static str> {
    match user {
        "ada" => Some("B"),
        "cleo" => Some("A"),
        _ => None,
    }
}

/// Whether a user may hear of a subject of a durable space, and of a pattern of them.
pub(crate) fn may_hear(user: &str, space: &str, subject: &str) -> bool {
    match space {
        "desk" => user == STAFF,
        _ => subject.starts_with("all.") || subject.starts_with(&format!("unit.{user}.")),
    }
}
