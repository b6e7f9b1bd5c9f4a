//! Sessions against a scripted server.
