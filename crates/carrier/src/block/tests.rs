//! What blocks promise, for bytes of friends and of others.

use proptest::prelude::*;

use super::*;

const NOW: fn() -> Duration = || Duration::ZERO;

const READABLE: [(Compression, ReadableKinds); 4] = [
    (Compression::Zstd, ReadableKinds::ALL),
    (Compression::Zstd, ReadableKinds(ReadableKinds::DEFLATE)),
    (Compression::Off, ReadableKinds::ALL),
    (Compression::Auto, ReadableKinds::ALL),
];

fn packer(compression: Compression, readable: ReadableKinds) -> BlockPacker {
    let packing = CompressionOptions {
        compression,
        level: None,
    };
    BlockPacker::new(packing, readable)
}

/// Bytes that have something of text, and something of noise.
fn bytes(length: usize, noise: u8) -> Vec<u8> {
    let mut state = 7_u32;
    let byte = |at: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        match (state >> 24) as u8 {
            chance if chance < noise => (state >> 16) as u8,
            _ => b"a row like any other row, "[at % 26],
        }
    };
    (0..length).map(byte).collect()
}

fn pack(packer: &mut BlockPacker, mut bytes: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    while !bytes.is_empty() {
        let count = packer.pack(bytes, NOW, &mut out);
        assert!(count > 0);
        bytes = &bytes[count..];
    }
    out
}

/// What comes of it, cut into pieces so large.
fn unpack(wire: &[u8], piece: usize, readable: ReadableKinds) -> Result<Vec<u8>, BlockError> {
    let mut unpacker = BlockUnpacker::new(readable);
    let mut all = Vec::new();
    for mut piece in wire.chunks(piece) {
        while !piece.is_empty() {
            let mut out = BytesMut::new();
            let taken = unpacker.unpack(piece, &mut out)?;
            assert!(taken > 0 && (taken == piece.len() || !out.is_empty()));
            assert!(out.len() <= MAX_BLOCK_BYTES);
            assert!(unpacker.holds() <= 2 * MAX_BLOCK_BYTES);
            all.extend_from_slice(&out);
            piece = &piece[taken..];
        }
    }
    Ok(all)
}

fn block(kind: u8, packed: &[u8], raw: usize) -> Vec<u8> {
    let mut block = vec![kind];
    block.extend_from_slice(&(packed.len() as u32).to_le_bytes()[..3]);
    block.extend_from_slice(&(raw as u32).to_le_bytes()[..3]);
    block.extend_from_slice(packed);
    block
}

fn deflated(bytes: &[u8]) -> Vec<u8> {
    let mut room = vec![0; bytes.len() + 1_024];
    let mut tools = Codecs::default();
    let count = tools.pack(BlockKind::Deflate, 9, bytes, &mut room).unwrap();
    room.truncate(count);
    room
}

#[test]
fn what_is_packed_comes_back_however_it_is_cut() {
    let said = bytes(300_000, 30);
    for (compression, readable) in READABLE {
        let wire = pack(&mut packer(compression, readable), &said);
        if compression != Compression::Off {
            assert!(wire.len() < said.len() / 2, "{compression}: {}", wire.len());
        }
        for piece in [1, 6, 7, 8, 1_000, 65_536, wire.len()] {
            let back = unpack(&wire, piece, readable).unwrap();
            assert!(back == said, "{compression} in pieces of {piece}");
        }
    }
}

#[test]
fn every_cut_of_a_packed_block_gives_all_or_nothing() {
    for kind in [Compression::Zstd, Compression::Deflate] {
        let mut packer = packer(kind, ReadableKinds::ALL);
        packer.never_packed = 0;
        let said = bytes(2_000, 20);
        let wire = pack(&mut packer, &said);
        for cut in 0..=wire.len() {
            let mut unpacker = BlockUnpacker::new(ReadableKinds::ALL);
            let mut out = BytesMut::new();
            unpacker.unpack(&wire[..cut], &mut out).unwrap();
            assert_eq!(out.is_empty(), cut < wire.len());
            assert_eq!(unpacker.is_between(), cut == 0 || cut == wire.len());
            unpacker.unpack(&wire[cut..], &mut out).unwrap();
            assert!(out == said);
        }
    }
}

#[test]
fn what_gets_no_smaller_costs_a_header_and_no_more() {
    let noise = bytes(500_000, 255);
    for (compression, readable) in READABLE {
        let wire = pack(&mut packer(compression, readable), &noise);
        let blocks = noise.len().div_ceil(MAX_BLOCK_BYTES) + 1;
        assert!(wire.len() <= noise.len() + blocks * BLOCK_HEADER_BYTES);
        assert!(unpack(&wire, 10_000, readable).unwrap() == noise);
    }
}

#[test]
fn what_is_said_first_is_not_packed() {
    let said = [b'x'; 10_000];
    let wire = pack(&mut packer(Compression::Zstd, ReadableKinds::ALL), &said);
    assert_eq!(wire[0], BlockKind::Raw.byte());
    assert_eq!(wire[7..7 + NEVER_PACKED_BYTES], said[..NEVER_PACKED_BYTES]);
    assert!(wire.len() < 7 + NEVER_PACKED_BYTES + 100);
}

#[test]
fn the_other_side_gets_only_what_it_reads() {
    let said = bytes(200_000, 20);
    for compression in Compression::ALL {
        for bits in 0..=3 {
            let readable = ReadableKinds(bits);
            let wire = pack(&mut packer(compression, readable), &said);
            assert!(unpack(&wire, 4_096, readable).unwrap() == said);
            let is_packed = wire.len() < said.len();
            assert_eq!(is_packed, compression != Compression::Off && bits != 0);
        }
    }
}

#[test]
fn a_bomb_never_unpacks_more_than_it_announces() {
    let bomb = vec![0; 64 << 20];
    let zstd = zstd::bulk::compress(&bomb, 19).unwrap();
    let deflate = deflated(&bomb);
    assert!(zstd.len() < MAX_BLOCK_BYTES && deflate.len() < MAX_BLOCK_BYTES);
    for (kind, packed) in [(BlockKind::Zstd, zstd), (BlockKind::Deflate, deflate)] {
        for raw in [packed.len() + 1, MAX_BLOCK_BYTES] {
            let wire = block(kind.byte(), &packed, raw);
            let mut out = BytesMut::new();
            let refused = BlockUnpacker::new(ReadableKinds::ALL).unpack(&wire, &mut out);
            assert_eq!(refused, Err(BlockError::Broken { kind, raw }));
            assert!(out.is_empty() && out.capacity() <= 2 * MAX_BLOCK_BYTES);
        }
    }
}

#[test]
fn nonsense_is_refused_by_its_header() {
    let over = MAX_BLOCK_BYTES + 1;
    let cases = [
        (block(3, b"abc", 9), BlockError::UnknownKind(3)),
        (block(255, b"abc", 9), BlockError::UnknownKind(255)),
        (block(0, b"", 0), BlockError::Lengths { packed: 0, raw: 0 }),
        (
            block(0, b"abc", 4),
            BlockError::Lengths { packed: 3, raw: 4 },
        ),
        (block(1, b"", 4), BlockError::Lengths { packed: 0, raw: 4 }),
        (
            block(2, b"abcd", 4),
            BlockError::Lengths { packed: 4, raw: 4 },
        ),
        (
            block(2, b"abcd", over),
            BlockError::Lengths {
                packed: 4,
                raw: over,
            },
        ),
        (
            block(0, &vec![0; over], over),
            BlockError::Lengths {
                packed: over,
                raw: over,
            },
        ),
        (
            block(2, b"abcd", 9),
            BlockError::Broken {
                kind: BlockKind::Zstd,
                raw: 9,
            },
        ),
    ];
    for (wire, error) in cases {
        let refused = unpack(&wire, wire.len(), ReadableKinds::ALL).unwrap_err();
        assert_eq!(refused, error);
        assert_eq!(unpack(&wire, 1, ReadableKinds::ALL).unwrap_err(), error);
    }
    let said = [b'x'; 100];
    let mut packer = packer(Compression::Zstd, ReadableKinds::ALL);
    packer.never_packed = 0;
    let wire = pack(&mut packer, &said);
    let refused = unpack(&wire, 9, ReadableKinds(ReadableKinds::DEFLATE));
    assert_eq!(refused, Err(BlockError::Unasked(BlockKind::Zstd)));
}

#[test]
fn a_block_holds_just_what_it_announces() {
    let said = bytes(1_000, 0);
    let zstd = zstd::bulk::compress(&said, 3).unwrap();
    for (kind, packed) in [
        (BlockKind::Zstd, zstd),
        (BlockKind::Deflate, deflated(&said)),
    ] {
        let whole = block(kind.byte(), &packed, said.len());
        assert!(unpack(&whole, 9, ReadableKinds::ALL).unwrap() == said);
        let with_more = [&packed[..], b"more"].concat();
        let without_end = &packed[..packed.len() - 1];
        for (packed, raw) in [
            (&packed[..], said.len() + 1),
            (&packed[..], said.len() - 1),
            (&with_more[..], said.len()),
            (without_end, said.len()),
        ] {
            let refused = unpack(&block(kind.byte(), packed, raw), 9, ReadableKinds::ALL);
            assert_eq!(refused, Err(BlockError::Broken { kind, raw }));
        }
    }
}

#[test]
fn a_preface_says_who_packs_and_who_reads_what() {
    for compression in Compression::ALL {
        let mut preface = *b"TIDE\x01\x00\0\0";
        let terms = PackingTerms::for_compression(compression);
        // Also piece by piece.
        for at in 0..PREFACE_BYTES {
            terms.write(&mut preface[at..=at], at);
        }
        assert_eq!(PackingTerms::read(&preface), Ok(terms));
    }
    assert_eq!(
        PackingTerms::read(b"TIDE\x01\x00\0\0"),
        Ok(PackingTerms::default())
    );
    let unknown = PackingTerms::read(b"TIDE\x01\x00\x02\0");
    assert_eq!(unknown, Err(BlockError::UnknownPacking(2)));
    // What only others can pack is not sent.
    let others = PackingTerms::read(b"TIDE\x01\x00\0\x04").unwrap();
    assert_eq!(others.client_reads, Some(ReadableKinds(4)));
    let wire = pack(
        &mut packer(Compression::Zstd, ReadableKinds(4)),
        &bytes(9_000, 0),
    );
    assert!(wire.len() > 9_000);
    // Whoever speaks something else is not looked at any further.
    assert_eq!(PackingTerms::read(b"GET / HT"), Ok(PackingTerms::default()));
}

/// `tests/vectors.txt` of this crate: a name, what is sent, and what that says, in hexadecimal.
fn vectors() -> impl Iterator<Item = (&'static str, Vec<u8>, Vec<u8>)> {
    let lines = include_str!("../../tests/vectors.txt").lines();
    lines.filter(|line| !line.starts_with('#')).map(|line| {
        let mut parts = line.split(' ');
        let mut next = || parts.next().expect("three parts");
        (next(), from_hex(next()), from_hex(next()))
    })
}

fn from_hex(hex: &str) -> Vec<u8> {
    let bytes = (0..hex.len()).step_by(2);
    bytes
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}

/// The first so many lines as they were committed, and their SHA-256: to change one is to change
/// the protocol. Whoever adds vectors adds a line here.
const COMMITTED: [(usize, &str); 1] = [(
    9,
    "c18aac6a7a874f237a2795a59896ee6652dfc443076e064c18a8505ee525dfd6",
)];

#[test]
fn golden_vectors_are_only_added_to() {
    use sha2::{Digest, Sha256};
    let text = include_str!("../../tests/vectors.txt");
    for (lines, sum) in COMMITTED {
        let first: String = text.split_inclusive('\n').take(lines).collect();
        let is: String = Sha256::digest(first.as_bytes())
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(is, sum, "the first {lines} lines");
    }
    assert_eq!(COMMITTED.last().unwrap().0, text.lines().count());
}

#[test]
fn golden_blocks_and_prefaces_say_what_they_said() {
    let mut count = 0;
    for (name, wire, says) in vectors() {
        count += 1;
        if let Some(setting) = name.strip_prefix("preface-") {
            let mut preface = *b"TIDE\x01\x00\0\0";
            let terms = PackingTerms::for_compression(setting.parse().unwrap());
            terms.write(&mut preface, 0);
            assert_eq!(preface[..], wire, "{name}");
            assert_eq!(preface[6..], says, "{name}");
            continue;
        }
        assert_eq!(
            unpack(&wire, 3, ReadableKinds::ALL).as_ref(),
            Ok(&says),
            "{name}"
        );
        if name.starts_with("raw") {
            let packed = pack(&mut packer(Compression::Off, ReadableKinds::ALL), &says);
            assert_eq!(packed, wire, "{name}");
        }
    }
    assert!(count >= 8, "{count}");
}

proptest! {
    #[test]
    fn random_bytes_come_back(
        said in proptest::collection::vec(any::<u8>(), 0..5_000),
        repeated in 1..60_usize,
        piece in 1..5_000_usize,
        which in 0..READABLE.len(),
    ) {
        let said = said.repeat(repeated);
        let (compression, readable) = READABLE[which];
        let wire = pack(&mut packer(compression, readable), &said);
        prop_assert!(unpack(&wire, piece, readable) == Ok(said));
    }

    #[test]
    fn random_bytes_are_read_alike_however_they_are_cut(
        noise in proptest::collection::vec(any::<u8>(), 0..300),
        kind in 0..4_u8,
        raw in 0..70_000_usize,
        piece in 1..50_usize,
    ) {
        let mut wire = block(kind, &noise, raw);
        wire.extend_from_slice(&noise);
        prop_assert_eq!(
            unpack(&wire, piece, ReadableKinds::ALL),
            unpack(&wire, wire.len(), ReadableKinds::ALL)
        );
    }

    #[test]
    fn a_changed_block_harms_nobody(
        place in 0..400_usize,
        flipped in 1..=255_u8,
        zstd in any::<bool>(),
    ) {
        let compression = if zstd { Compression::Zstd } else { Compression::Deflate };
        let mut packer = packer(compression, ReadableKinds::ALL);
        packer.never_packed = 0;
        let mut wire = pack(&mut packer, &bytes(2_000, 30));
        let place = place % wire.len();
        wire[place] ^= flipped;
        let _ = unpack(&wire, 11, ReadableKinds::ALL);
    }
}
