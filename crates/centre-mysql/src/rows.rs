//! Rows of uploads: what the database says of those that it does not take.

pub(super) mod refusal;
