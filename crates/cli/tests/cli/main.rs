//! The `tidewater` program from end to end: the real binary, real servers on free
//! loopback ports, real databases.

mod accidents;
mod admin;
mod administration;
mod assignments;
#[cfg(target_os = "linux")]
mod bench;
mod calls;
mod centre;
mod choosing;
mod conflicts;
mod demo;
mod desk;
mod devices;
mod entry;
mod exit_codes;
mod explaining;
mod failover;
mod farm;
mod first_steps;
mod full_disk;
mod handlers;
mod hierarchy;
mod image;
mod init;
mod json;
mod kept_images;
mod keys;
mod kill;
mod live;
mod manual;
mod matrix;
mod moving_on;
mod network;
mod newcomer;
mod operations;
mod own_changes;
mod partitions;
mod program;
mod quiet;
mod refused;
mod relay;
mod retrying;
mod rights;
mod row_security;
mod schema_changes;
mod scripts;
mod second_way;
mod separate_programs;
mod serving;
mod shop;
mod signing_in;
mod simulate;
mod spaces;
mod statements;
#[cfg(target_os = "linux")]
mod storm;
mod strangers;
mod taken_over;
mod third_party;
mod times;
mod tls;
mod user_import;
mod verify;
#[cfg(target_os = "linux")]
mod waiting;
