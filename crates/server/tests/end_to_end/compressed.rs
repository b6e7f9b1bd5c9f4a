//! Compression: whatever each side has set, all end equal, and much less goes over the line.

use std::io::{Read, Write};
use std::net::TcpStream;

use flate2::write::ZlibEncoder;
use tidewater_client::{Compression, CompressionOptions};
use tidewater_protocol::Code;
use tidewater_protocol::frame::{Frame, PREFACE, take_frame};
use tidewater_protocol::message::Control;

use crate::backend::Backend;
use crate::compare::assert_converged;
use crate::device::Device;
use crate::hostile::{LIMITS, is_rid_of};
use crate::random::Random;
use crate::scenario::shop;
use crate::world::{LiveServer, World};

/// Rows of a bulk, each with a note of its own.
const ROWS: u32 = 4_000;

fn packing(compression: Compression) -> CompressionOptions {
    CompressionOptions {
        compression,
        level: None,
    }
}

/// Straight to a server: what counts frames on the way cannot read blocks.
fn reach(device: &mut Device, server: &LiveServer, compression: Compression) {
    let url = format!("tcp://{}", server.address);
    let reached = device.remote.subscribe(&url, &device.user, &[]);
    reached.expect("the file can be written");
    device.remote.set_compression(packing(compression));
}

/// Purchases, as people note them.
fn buy(device: &Device, round: u32) {
    let first = 10_000 * (round + 1);
    device.edit(&format!(
        "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS} - 1)
         INSERT INTO invoice
         SELECT {first} + i, 2, 2, printf(
             'order of 2026-11-%02d: %d pieces at %d.%02d each, to be delivered to the back door; '
             || 'paid %s', 1 + i % 28, 1 + i * 7 % 90, i * 13 % 400, i * 31 % 100,
             CASE i % 3 WHEN 0 THEN 'in cash' WHEN 1 THEN 'by card' ELSE 'later' END)
         FROM n"
    ));
}

fn packs(remote: Compression) -> bool {
    // Here, `auto` is between two sides of one machine.
    matches!(remote, Compression::Zstd | Compression::Deflate)
}

fn whatever_each_side_has_set_all_end_equal_and_bulk_is_a_third<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut ada = world.synced("ada");
    let mut bob = world.synced("bob");
    let mut round = 0;
    for of_server in Compression::ALL {
        let server = world.server_with(|config| config.server.packing = packing(of_server));
        for of_remote in Compression::ALL {
            reach(&mut ada, &server, of_remote);
            reach(&mut bob, &server, of_remote);
            buy(&ada, round);
            let up = ada.sync();
            let down = bob.sync();
            // The result of so many rows is short.
            let [sent, received] = [up.bytes_sent, down.bytes_received];
            let raw = u64::from(ROWS) * 100;
            let what = format!("{of_remote} with {of_server}: {sent} and {received}");
            let is_third = |bytes: u64| bytes * 100 <= raw * 35;
            assert_eq!(is_third(sent), packs(of_remote), "{what}");
            let server_packs = matches!(of_server, Compression::Zstd | Compression::Deflate);
            if packs(of_remote) && server_packs {
                assert!(is_third(received), "{what}");
            } else if !packs(of_remote) || of_server == Compression::Off {
                assert!(received > raw, "{what}");
            }
            round += 1;
        }
    }
    assert_converged(&world, &[&ada, &bob]);
}

fn i8_bombs_and_nonsense_in_blocks_harm_nobody<B: Backend>() {
    let mut scenario = shop();
    scenario.limits = LIMITS;
    let world = World::<B>::open(scenario);
    let address = world.server.address;
    let mut ada = world.synced("ada");
    reach(&mut ada, &world.server, Compression::Zstd);
    let mut random = Random::seeded(20_261_127);
    let bomb = bomb();
    std::thread::scope(|scope| {
        for number in 0..24 {
            let mut said = preface().to_vec();
            let noise = (0..random.below(9_000)).map(|_| random.next() as u8);
            match number % 6 {
                0 => said.extend_from_slice(&block(1, &bomb, 128 << 10)),
                1 => said.extend_from_slice(&block(2, &bomb, 128 << 10)),
                2 => said.extend_from_slice(&block(1, &bomb, (128 << 10) + 1)),
                3 => said.extend(noise),
                // Of a large block only the beginning comes.
                4 => {
                    let block = block(2, &vec![7; 100_000], 128 << 10);
                    said.extend_from_slice(&block[..block.len() - 1]);
                }
                _ => said.extend_from_slice(&block(random.next() as u8, b"what", 4)),
            }
            scope.spawn(move || {
                let half_closes = number % 2 == 0;
                assert!(is_rid_of(address, &said, half_closes), "{number}");
            });
        }
        for round in 0..5 {
            ada.edit(&format!("UPDATE customer SET balance = '{round}.00'"));
            ada.sync();
        }
    });
    assert_converged(&world, &[&ada]);
}

fn who_sends_a_bomb_is_told_in_blocks_what_is_wrong<B: Backend>() {
    let world = World::<B>::open(shop());
    let mut socket = TcpStream::connect(world.server.address).expect("the server listens");
    let said = [&preface()[..], &block(1, &bomb(), 128 << 10)].concat();
    socket.write_all(&said).expect("it is taken");
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).expect("the server closes");
    // One raw block, with one frame in it.
    assert_eq!(answer[0], 0);
    let mut frames = bytes::BytesMut::from(&answer[7..]);
    let frame = take_frame(&mut frames).expect("it is a frame");
    let Some(Frame::Control {
        control: Some(Control::Failure(failure)),
        ..
    }) = frame
    else {
        panic!("{frame:?}");
    };
    assert_eq!(failure.code, Code::MalformedFrame.number(), "{failure:?}");
    assert!(failure.message.contains("deflate"), "{failure:?}");
}

/// It packs, and reads everything.
fn preface() -> [u8; 8] {
    let mut preface = PREFACE;
    preface[6..].copy_from_slice(&[1, 3]);
    preface
}

fn block(kind: u8, packed: &[u8], raw: usize) -> Vec<u8> {
    let mut block = vec![kind];
    block.extend_from_slice(&(packed.len() as u32).to_le_bytes()[..3]);
    block.extend_from_slice(&(raw as u32).to_le_bytes()[..3]);
    block.extend_from_slice(packed);
    block
}

/// A few kilobytes that are many megabytes.
fn bomb() -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    let zeros = vec![0; 1 << 20];
    for _ in 0..32 {
        encoder.write_all(&zeros).expect("memory is there");
    }
    encoder.finish().expect("memory is there")
}

on_both_adapters!(
    whatever_each_side_has_set_all_end_equal_and_bulk_is_a_third,
    i8_bombs_and_nonsense_in_blocks_harm_nobody,
    who_sends_a_bomb_is_told_in_blocks_what_is_wrong,
);
