use proptest::prelude::*;

use super::*;

const DATA: u8 = 0;

/// The path that kubelet sends: plain, and as Huffman code (any bytes will do, because they are not
/// decoded).
const PLAIN: &[u8] = b"%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fhostloop.csi.dev-reg.sock";
const HUFFMAN: &[u8] = &[
    0x15, 0x8c, 0x3b, 0xb0, 0x76, 0x50, 0x56, 0x30, 0xa0, 0x68, 0xf1, 0x55, 0x63, 0x05,
];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

fn integer(first: u8, bits: u32, value: u32) -> Vec<u8> {
    let full = (1 << bits) - 1;
    if value < full {
        return vec![first | u8::try_from(value).unwrap()];
    }
    let mut bytes = vec![first | u8::try_from(full).unwrap()];
    let mut left = value - full;
    while left >= 0x80 {
        bytes.push(u8::try_from(left & 0x7f).unwrap() | 0x80);
        left >>= 7;
    }
    bytes.push(u8::try_from(left).unwrap());
    bytes
}

fn string(huffman: bool, bytes: &[u8]) -> Vec<u8> {
    let mut coded = integer(
        u8::from(huffman) << 7,
        7,
        u32::try_from(bytes.len()).unwrap(),
    );
    coded.extend(bytes);
    coded
}

fn join(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

/// The output for the input split into pieces of these sizes, with the rest in one piece.
fn repaired(bytes: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let mut repair = AuthorityRewrite::default();
    let mut rest = bytes.as_mut_slice();
    for size in sizes {
        let (piece, others) = rest.split_at_mut((*size).min(rest.len()));
        repair.feed(piece);
        rest = others;
    }
    repair.feed(rest);
    bytes
}

/// Checks the output for the input in one piece, and byte by byte.
#[track_caller]
fn check(what: &str, sent: &[u8], expected: &[u8]) {
    for sizes in [vec![], vec![1; sent.len()]] {
        assert_eq!(repaired(sent, &sizes), expected, "{what} {}", sizes.len());
    }
}

fn after_preface(frames: &[u8]) -> Vec<u8> {
    join(&[PREFACE, frames])
}

/// A typical header block around the authority: method, scheme, a path, two header fields.
fn block(authority: &[u8]) -> Vec<u8> {
    join(&[
        &[0x83, 0x86],
        &[0x45],
        &string(true, &[0x62, 0xba, 0x2d, 0x98]),
        authority,
        &[0x5f],
        &string(true, &[0x1d, 0x75]),
        &[0x40],
        &string(false, b"te"),
        &string(false, b"trailers"),
    ])
}

#[test]
fn an_authority_is_overwritten_however_it_is_written() {
    let plain = |first: &[u8], value: &[u8]| join(&[first, &string(false, value)]);
    let huffman = |first: &[u8], value: &[u8]| join(&[first, &string(true, value)]);
    let x = |count| vec![b'x'; count];
    let resized = [0x3f, 0xe1, 0x1f, 0x41];
    let twice = |one: &[u8], other: &[u8]| join(&[&plain(&resized, one), &plain(&[0x41], other)]);
    let known = vec![0xff, 0x01, 0xc0];
    let cases = [
        (
            "entry, plain",
            plain(&[0x41], PLAIN),
            plain(&[0x41], &x(69)),
        ),
        (
            "entry, Huffman",
            huffman(&[0x41], HUFFMAN),
            plain(&[0x41], &x(14)),
        ),
        (
            "no entry",
            huffman(&[0x01], HUFFMAN),
            plain(&[0x01], &x(14)),
        ),
        (
            "never an entry",
            plain(&[0x11], b"%2F"),
            plain(&[0x11], b"xxx"),
        ),
        (
            "long",
            huffman(&[0x41], &[0xff; 300]),
            plain(&[0x41], &x(300)),
        ),
        ("empty", plain(&[0x41], b""), plain(&[0x41], b"")),
        // The size of the table changes first.
        ("twice", twice(b"%", b"/"), twice(b"x", b"x")),
        ("an earlier entry", known.clone(), known),
    ];
    for (what, authority, expected) in cases {
        let sent = after_preface(&frame(HEADERS, END_HEADERS, 1, &block(&authority)));
        let expected = after_preface(&frame(HEADERS, END_HEADERS, 1, &block(&expected)));
        check(what, &sent, &expected);
    }
}

#[test]
fn what_cannot_be_followed_passes_as_it_is() {
    let literal = join(&[&[0x41], &string(false, PLAIN)]);
    let whole = |flags: u8, block: &[u8]| frame(HEADERS, END_HEADERS | flags, 1, block);
    let (headers, begun) = (whole(0, &literal), frame(HEADERS, 0, 1, &[0x83]));
    let end = |stream: u32| frame(CONTINUATION, END_HEADERS, stream, &literal);
    let too_long = vec![0; MAX_FRAME as usize + 1];
    let no_preface = join(&[b"GET / HTTP/1.1\r\n\r\n", &headers]);
    check("no preface", &no_preface, &no_preface);
    let cases = [
        (
            "a frame that is too long",
            vec![frame(DATA, 0, 1, &too_long), headers.clone()],
        ),
        (
            "headers that are too long",
            vec![whole(0, &join(&[&literal, &too_long]))],
        ),
        ("a continuation of nothing", vec![end(1), headers.clone()]),
        (
            "a continuation on another stream",
            vec![begun.clone(), end(3)],
        ),
        (
            "something in between",
            vec![begun, frame(DATA, 0, 1, &[]), end(1)],
        ),
        (
            "more padding than payload",
            vec![whole(PADDED, &[9, 0x41, 1, b'%']), headers.clone()],
        ),
        (
            "no number of padding bytes",
            vec![whole(PADDED, &[]), headers.clone()],
        ),
        (
            "a number that does not end",
            vec![whole(0, &[0xff; 12]), headers],
        ),
    ];
    for (what, frames) in cases {
        let sent = after_preface(&frames.concat());
        check(what, &sent, &sent);
    }
}

/// A field as sent, and as expected after the rewrite.
fn field() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let text = || (any::<bool>(), prop::collection::vec(any::<u8>(), 0..200));
    let first = prop::sample::select(vec![(0x40u8, 6u32), (0x00, 4), (0x10, 4)]);
    let plain = prop_oneof![
        (0u32..400).prop_map(|index| integer(0x80, 7, index)),
        (0u32..5000).prop_map(|size| integer(0x20, 5, size)),
        (first.clone(), 2u32..400, text()).prop_map(|((first, bits), name, (huffman, value))| {
            join(&[&integer(first, bits, name), &string(huffman, &value)])
        }),
        (first.clone(), text(), text()).prop_map(|((first, bits), name, value)| {
            join(&[
                &integer(first, bits, 0),
                &string(name.0, &name.1),
                &string(value.0, &value.1),
            ])
        }),
    ];
    let authority = (first, text()).prop_map(|((first, bits), (huffman, value))| {
        let name = integer(first, bits, AUTHORITY);
        let harmless = vec![HARMLESS; value.len()];
        (
            join(&[&name, &string(huffman, &value)]),
            join(&[&name, &string(false, &harmless)]),
        )
    });
    prop_oneof![2 => plain.prop_map(|bytes| (bytes.clone(), bytes)), 1 => authority]
}

/// Frames with one header block in several parts, or another frame: as sent, and as expected.
fn frames() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let fields = prop::collection::vec(field(), 0..8);
    let cuts = prop::collection::vec(any::<prop::sample::Index>(), 0..4);
    let headers = (
        fields,
        cuts,
        prop::option::of(any::<u8>()),
        any::<bool>(),
        1u32..9,
    )
        .prop_map(|(fields, cuts, padding, priority, stream)| {
            let (sent, expected): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
            let (sent, expected) = (sent.concat(), expected.concat());
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(sent.len() + 1)).collect();
            cuts.sort_unstable();
            let framed = |block: &[u8]| in_frames(block, &cuts, padding, priority, stream);
            (framed(&sent), framed(&expected))
        });
    let kind = any::<u8>().prop_filter("has no headers", |kind| {
        ![HEADERS, CONTINUATION].contains(kind)
    });
    let payload = prop::collection::vec(any::<u8>(), 0..300);
    let other =
        (kind, any::<u8>(), any::<u32>(), payload).prop_map(|(kind, flags, stream, payload)| {
            let frame = frame(kind, flags, stream, &payload);
            (frame.clone(), frame)
        });
    prop_oneof![headers, other]
}

fn in_frames(
    block: &[u8],
    cuts: &[usize],
    padding: Option<u8>,
    priority: bool,
    stream: u32,
) -> Vec<u8> {
    let mut frames = Vec::new();
    let mut from = 0;
    for (i, to) in cuts.iter().copied().chain([block.len()]).enumerate() {
        let mut flags = if i == cuts.len() { END_HEADERS } else { 0 };
        let fragment = &block[from..to];
        from = to;
        if i > 0 {
            frames.extend(frame(CONTINUATION, flags, stream, fragment));
            continue;
        }
        let mut payload = Vec::new();
        payload.extend(padding);
        payload.extend(priority.then_some([0x41u8; 5]).into_iter().flatten());
        payload.extend(fragment);
        payload.extend(vec![0x41; usize::from(padding.unwrap_or(0))]);
        flags |= if padding.is_some() { PADDED } else { 0 };
        flags |= if priority { PRIORITY } else { 0 };
        frames.extend(frame(HEADERS, flags, stream, &payload));
    }
    frames
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn nothing_but_authorities_changes(
        frames in prop::collection::vec(frames(), 0..6),
        sizes in prop::collection::vec(0usize..40, 0..60),
    ) {
        let (sent, expected): (Vec<_>, Vec<_>) = frames.into_iter().unzip();
        let (sent, expected) = (after_preface(&sent.concat()), after_preface(&expected.concat()));
        prop_assert_eq!(repaired(&sent, &sizes), expected.clone());
        prop_assert_eq!(repaired(&expected, &[]), expected);
    }

    #[test]
    fn how_bytes_are_cut_makes_no_difference(
        frames in prop::collection::vec(frames(), 0..4),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        tail in prop::collection::vec(any::<u8>(), 0..100),
        preface in prop::bool::weighted(0.95),
        sizes in prop::collection::vec(0usize..40, 0..60),
    ) {
        let mut sent = if preface { PREFACE.to_vec() } else { Vec::new() };
        sent.extend(frames.into_iter().flat_map(|(sent, _)| sent));
        sent.extend(tail);
        for (at, byte) in damage {
            if !sent.is_empty() {
                let at = at.index(sent.len());
                sent[at] = byte;
            }
        }
        let whole = repaired(&sent, &[]);
        prop_assert_eq!(&repaired(&sent, &sizes), &whole);
        // The rewrite changes bytes only to the harmless letter, or clears the Huffman bit.
        for (before, after) in sent.iter().zip(&whole) {
            prop_assert!(before == after || *after == HARMLESS || *after == before & 0x7f);
        }
    }
}

/// Arbitrary bytes after the HTTP/2 preface, split arbitrarily. Runs for `HOSTLOOP_FUZZ_SECONDS`
/// (default 10), or guided by coverage with `cargo bolero`.
#[test]
fn fuzz_any_stream() {
    let seconds = std::env::var("HOSTLOOP_FUZZ_SECONDS").map_or(10, |text| text.parse().unwrap());
    let inputs = std::sync::atomic::AtomicU64::new(0);
    bolero::check!()
        .with_test_time(std::time::Duration::from_secs(seconds))
        .with_max_len(4096)
        .for_each(|bytes: &[u8]| {
            inputs.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let (sizes, frames) = bytes.split_at(bytes.len().min(8));
            let sizes: Vec<usize> = sizes.iter().map(|size| usize::from(*size)).collect();
            let sent = after_preface(frames);
            let whole = repaired(&sent, &[]);
            assert_eq!(repaired(&sent, &sizes), whole);
            assert_eq!(repaired(&whole, &[]), whole);
            for (before, after) in sent.iter().zip(&whole) {
                assert!(before == after || *after == HARMLESS || *after == before & 0x7f);
            }
        });
    println!("fuzz registration stream: {} inputs", inputs.into_inner());
}
