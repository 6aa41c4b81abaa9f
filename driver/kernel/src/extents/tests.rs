use std::os::unix::fs::FileExt;
use std::sync::Arc;

use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::Error;
use crate::wanted::Wanted;

const K: u64 = 4096;

fn at(logical: u64, physical: u64, blocks: u64) -> Extent {
    Extent {
        logical: logical * K,
        physical: physical * K,
        length: blocks * K,
        addressed: true,
    }
}

fn vague(logical: u64, blocks: u64) -> Extent {
    Extent {
        logical: logical * K,
        physical: 0,
        length: blocks * K,
        addressed: false,
    }
}

/// The ranges that a function emits.
fn collect(find: impl FnOnce(&mut dyn FnMut(ByteRange) -> bool) -> Result<()>) -> Vec<ByteRange> {
    let mut ranges = Vec::new();
    let mut emit = |range| {
        ranges.push(range);
        true
    };
    find(&mut emit).unwrap();
    ranges
}

/// Differences as (first block, blocks, certain).
fn blocks(differences: &[Difference]) -> Vec<(u64, u64, bool)> {
    let block = |d: &Difference| (d.range.offset / K, d.range.length / K, d.certain);
    differences.iter().map(block).collect()
}

#[rstest]
#[case::nothing(&[], &[], 0)]
#[case::all(&[at(0, 50, 8)], &[at(0, 50, 8)], 8)]
#[case::cut_elsewhere(&[at(0, 50, 8)], &[at(0, 50, 3), at(3, 53, 5)], 8)]
#[case::written_in_the_middle(&[at(0, 50, 8)], &[at(0, 50, 3), at(3, 90, 2), at(5, 55, 3)], 6)]
#[case::longer_base(&[at(0, 50, 2), at(2, 70, 6)], &[at(1, 51, 3)], 1)]
#[case::several_in_one(&[at(0, 50, 2), at(2, 52, 2), at(5, 55, 2)], &[at(0, 50, 8)], 6)]
#[case::shifted_address(&[at(0, 50, 4)], &[at(0, 51, 4)], 0)]
#[case::another_offset(&[at(0, 50, 4)], &[at(4, 50, 4)], 0)]
#[case::vague(&[vague(0, 4)], &[vague(0, 4)], 0)]
fn what_two_files_have_in_common(
    #[case] base: &[Extent],
    #[case] target: &[Extent],
    #[case] expected: u64,
) {
    assert_eq!(common(base, target), expected * K);
    assert_eq!(common(target, base), expected * K);
}

#[rstest]
#[case::both_empty(&[], &[], true, &[])]
#[case::same_place(&[at(0, 50, 8)], &[at(0, 50, 8)], true, &[])]
#[case::same_place_cut_elsewhere(&[at(0, 50, 8)], &[at(0, 50, 3), at(3, 53, 5)], true, &[])]
#[case::written_in_the_middle(
    &[at(0, 50, 8)], &[at(0, 50, 3), at(3, 90, 2), at(5, 55, 3)], true, &[(3, 2, true)]
)]
#[case::new_data(&[], &[at(2, 9, 2)], true, &[(2, 2, true)])]
#[case::discarded(&[at(2, 9, 2)], &[], true, &[(2, 2, true)])]
#[case::shifted_address(&[at(0, 50, 4)], &[at(0, 51, 4)], true, &[(0, 4, true)])]
#[case::base_vague(&[vague(0, 4)], &[at(0, 0, 4)], true, &[(0, 4, false)])]
#[case::both_vague(&[vague(0, 4)], &[vague(0, 4)], true, &[(0, 4, false)])]
#[case::nothing_shared_here(&[at(0, 50, 4)], &[at(0, 50, 4)], false, &[(0, 4, false)])]
#[case::where_either_has_data(
    &[at(0, 50, 2), at(6, 1, 1)], &[at(1, 70, 3)], false, &[(0, 4, false), (6, 1, false)]
)]
#[case::holes_and_data(
    &[at(0, 50, 2), vague(4, 1), at(6, 1, 1)], &[at(1, 51, 3), at(4, 60, 1)], true,
    &[(0, 1, true), (2, 2, true), (4, 1, false), (6, 1, true)]
)]
#[case::base_shorter(&[at(0, 50, 2)], &[at(0, 50, 2), at(2, 80, 6)], true, &[(2, 6, true)])]
fn delta_of_two_maps(
    #[case] base: &[Extent],
    #[case] target: &[Extent],
    #[case] shares: bool,
    #[case] expected: &[(u64, u64, bool)],
) {
    assert_eq!(blocks(&delta(base, target, shares)), expected);
}

#[rstest]
#[case::plain(0, Some(true))]
#[case::last_merged_shared(fiemap::LAST | fiemap::MERGED | fiemap::SHARED, Some(true))]
#[case::unwritten(fiemap::UNWRITTEN | fiemap::LAST, None)]
#[case::unknown_delayed(0x2 | 0x4, Some(false))]
#[case::encoded(0x8, Some(false))]
#[case::encrypted(0x80 | 0x8, Some(false))]
#[case::not_aligned(0x100, Some(false))]
#[case::inline(0x200 | 0x100, Some(false))]
#[case::a_later_kernels(0x8000_0000, Some(false))]
fn flags_say_whether_to_trust_an_address(#[case] flags: u32, #[case] addressed: Option<bool>) {
    let mut raw = fiemap::RawExtent::default();
    (raw.physical, raw.length, raw.flags) = (9, K, flags);
    assert_eq!(written(&raw).map(|e| e.addressed), addressed);
}

#[rstest]
#[case::btrfs(BTRFS, true)]
#[case::xfs(XFS, true)]
#[case::tmpfs(0x0102_1994, false)]
#[case::smb2(0xfe53_4d42, false)]
#[case::cifs(0xff53_4d42, false)]
#[case::bcachefs(0xca45_1a4e, false)]
#[case::nfs(0x6969, false)]
fn where_equal_addresses_are_equal_content(#[case] f_type: i64, #[case] expected: bool) {
    assert_eq!(addresses_are_blocks(f_type), expected);
}

/// SMB gives these to any two files.
#[test]
fn without_addresses_content_decides() {
    let extents = vec![at(0, 0, 4)];
    let mut pair = Pair {
        base: extents.clone(),
        target: extents,
        end: 4 * K,
    };
    assert_eq!(blocks(&delta(&pair.base, &pair.target, true)), []);
    pair.forget_addresses();
    let found = blocks(&delta(&pair.base, &pair.target, true));
    assert_eq!(found, [(0, 4, false)]);
}

#[test]
fn runs_are_joined_and_cut() {
    let mut runs = Vec::new();
    for extent in [
        at(0, 10, 1),
        at(1, 11, 2),
        at(3, 20, 1),
        vague(4, 1),
        vague(5, 1),
    ] {
        append(&mut runs, extent);
    }
    assert_eq!(runs, [at(0, 10, 3), at(3, 20, 1), vague(4, 2)]);
    let cut = clip(&runs, 2 * K, 5 * K);
    assert_eq!(cut, [at(2, 12, 1), at(3, 20, 1), vague(4, 1)]);
}

/// A block of a file: `None` is a hole, else its address and whether that is valid.
type Block = Option<(u64, bool)>;

fn map(file: &[Block]) -> Vec<Extent> {
    let mut extents = Vec::new();
    for (i, block) in file.iter().enumerate() {
        match *block {
            Some((place, true)) => append(&mut extents, at(i as u64, place, 1)),
            Some((_, false)) => append(&mut extents, vague(i as u64, 1)),
            None => {}
        }
    }
    extents
}

fn file() -> impl Strategy<Value = Vec<Block>> {
    let block = prop_oneof![
        2 => Just(None),
        // Few addresses, so that two files often share one.
        6 => (0u64..12).prop_map(|place| Some((place, true))),
        1 => (0u64..12).prop_map(|place| Some((place, false))),
    ];
    prop::collection::vec(block, 0..40)
}

proptest! {
    #[test]
    fn delta_misses_nothing(base in file(), target in file(), shares: bool, disk: [u8; 12]) {
        let differences = delta(&map(&base), &map(&target), shares);
        let reported = |i: usize| {
            let offset = i as u64 * K;
            differences.iter().find(|d| d.range.offset <= offset && offset < d.range.end())
        };
        let block = |file: &[Block], i: usize| file.get(i).copied().flatten();
        let content = |b: Block| b.map_or(0, |(place, _)| disk[place as usize]);
        for i in 0..base.len().max(target.len()) {
            let (b, t) = (block(&base, i), block(&target, i));
            prop_assert!(content(b) == content(t) || reported(i).is_some(), "block {i}");
            if shares && b == t && b.is_none_or(|(_, addressed)| addressed) {
                prop_assert!(reported(i).is_none(), "block {i} is shared");
            }
            if !shares && (b.is_some() || t.is_some()) {
                prop_assert!(reported(i).is_some_and(|d| !d.certain), "block {i} needs a look");
            }
        }
        for pair in differences.windows(2) {
            prop_assert!(pair[0].range.end() <= pair[1].range.offset);
        }
        prop_assert!(differences.iter().all(|d| d.range.length > 0));
    }

    #[test]
    fn compare_finds_exactly_the_blocks_that_differ(
        base in prop::collection::vec(0u8..3, 0..200),
        target in prop::collection::vec(0u8..3, 0..200),
        from in 0u64..100,
        blocks in 1u64..200,
    ) {
        let (left, right) = (content(&base), content(&target));
        let range = ByteRange { offset: from * K, length: blocks * K };
        let found = collect(|emit| {
            compare::contents(&left, &right, range, emit).map(|more| assert!(more))
        });
        let at = |v: &[u8], i: u64| v.get(i as usize).copied().unwrap_or(0);
        for i in from..from + blocks {
            let differs = found.iter().any(|r| r.offset <= i * K && i * K < r.end());
            prop_assert_eq!(differs, at(&base, i) != at(&target, i), "block {}", i);
        }
        for pair in found.windows(2) {
            prop_assert!(pair[0].end() < pair[1].offset, "runs are joined");
        }
    }
}

fn content(blocks: &[u8]) -> File {
    let file = tempfile::tempfile().unwrap();
    for (i, byte) in blocks.iter().enumerate() {
        file.write_all_at(&[*byte; 4096], i as u64 * K).unwrap();
    }
    file
}

#[test]
fn compare_stops_on_request() {
    let (left, right) = (content(&[1, 0, 1, 0, 1]), content(&[]));
    let mut calls = 0;
    let range = ByteRange {
        offset: 0,
        length: 5 * K,
    };
    let more = compare::contents(&left, &right, range, &mut |_| {
        calls += 1;
        calls < 2
    });
    assert!(!more.unwrap());
    assert_eq!(calls, 2);
}

#[test]
fn an_unwanted_comparison_ends_without_a_difference() {
    let (left, right) = (content(&[1; 3]), content(&[1; 3]));
    let range = ByteRange {
        offset: 0,
        length: 3 * K,
    };
    let unwanted = Arc::new(Wanted::default());
    let compare = || compare::contents(&left, &right, range, &mut |_| false);
    assert!(unwanted.run(compare).unwrap(), "they are equal");
    unwanted.end();
    let compared = unwanted.run(compare);
    assert!(
        matches!(compared, Err(Error::Unwanted { .. })),
        "{compared:?}"
    );
}

/// The file has more extents than one call returns, on any filesystem under the test.
#[test]
fn a_file_of_many_extents_is_read_in_windows() {
    let blocks = 2 * fiemap::BATCH as u64 + 100;
    let file = tempfile::tempfile().unwrap();
    file.set_len(2 * blocks * K).unwrap();
    for i in 0..blocks {
        file.write_all_at(&[7; 4096], 2 * i * K).unwrap();
    }
    let range = |offset, length| ByteRange { offset, length };
    let every_other: Vec<ByteRange> = (0..blocks).map(|i| range(2 * i * K, K)).collect();
    let all = extents(&file).unwrap();
    let all: Vec<ByteRange> = all.iter().map(|e| range(e.logical, e.length)).collect();
    assert_eq!(all, every_other);
    let some = collect(|emit| allocated(&file, range(100 * K, 2000 * K), emit));
    assert_eq!(some, every_other[50..1050]);
}

/// tmpfs has no FIEMAP.
#[test]
fn without_fiemap_runs_have_no_address() {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    file.set_len(64 * K).unwrap();
    file.write_all_at(&[1; 4096], 8 * K).unwrap();
    file.write_all_at(&[1; 8192], 63 * K).unwrap();
    assert_eq!(extents(&file).unwrap(), [vague(8, 1), vague(63, 2)]);
    let base = tempfile::tempfile_in("/dev/shm").unwrap();
    base.write_all_at(&[1; 4096], 8 * K).unwrap();
    let (offset, length) = (0, 65 * K);
    let span = ByteRange { offset, length };
    let found = collect(|emit| changed(&base, &file, span, true, emit));
    let (offset, length) = (63 * K, 2 * K);
    assert_eq!(found, [ByteRange { offset, length }]);
}
