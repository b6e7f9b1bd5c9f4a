//! Sessions against a scripted server, on real files.

mod cuts;
mod exchange;
mod kept;
mod misbehaviour;
mod model;
mod restored;
mod several;
