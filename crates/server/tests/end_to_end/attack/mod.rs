//! Odd applications, odd centres and dishonest remotes, while others sync.

mod centre_triggers;
mod redeploy;
mod refusals;
mod sizes;
mod values;
