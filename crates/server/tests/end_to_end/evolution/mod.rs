//! A publication changes under a fleet of remotes: what reaches them, what becomes of their
//! pending changes, and what deploying says about it before.

mod compatible;
mod fleet;
mod incompatible;
