use rstest::rstest;

use super::*;

const GI: u64 = 1 << 30;

fn limits() -> CapacityLimits {
    CapacityLimits {
        overcommit: 1.0,
        reserve: Reserve::Bytes(0),
        max_volume_bytes: None,
        capacity_bytes: None,
    }
}

/// A filesystem of 100 GiB, with its free, held, promised and reserved space in GiB.
fn usage(free: u64, ours: u64, promised: u64, taking: u64) -> SpaceUsage {
    SpaceUsage {
        filesystem: FsUsage {
            total_bytes: 100 * GI,
            free_bytes: free * GI,
            available_bytes: free * GI,
            ..FsUsage::default()
        },
        unused: 0,
        ours: ours * GI,
        promised: promised * GI,
        others: 0,
        taking: taking * GI,
    }
}

fn reserve() -> CapacityLimits {
    CapacityLimits {
        reserve: Reserve::Percent(5.0),
        ..limits()
    }
}

fn double() -> CapacityLimits {
    CapacityLimits {
        overcommit: 2.0,
        ..limits()
    }
}

fn double_with_reserve() -> CapacityLimits {
    CapacityLimits {
        overcommit: 2.0,
        ..reserve()
    }
}

fn capped(gi: u64) -> CapacityLimits {
    CapacityLimits {
        capacity_bytes: Some(gi * GI),
        ..limits()
    }
}

/// The accounting, the limits, and what thin and thick volumes can be promised, in GiB.
#[rstest]
#[case::empty(usage(100, 0, 0, 0), limits(), 100, 100)]
#[case::a_reserve(usage(100, 0, 0, 0), reserve(), 95, 95)]
#[case::other_data(usage(70, 0, 0, 0), reserve(), 65, 65)]
#[case::promised_not_allocated(usage(100, 0, 30, 0), reserve(), 65, 65)]
#[case::promised_and_allocated(usage(70, 30, 30, 0), reserve(), 65, 65)]
#[case::promised_and_partly_allocated(usage(90, 10, 30, 0), reserve(), 65, 65)]
#[case::all_promised(usage(100, 0, 95, 0), reserve(), 0, 0)]
#[case::more_promised_than_there_is(usage(10, 5, 99, 0), reserve(), 0, 0)]
#[case::overcommitted(usage(100, 0, 95, 0), double_with_reserve(), 95, 95)]
#[case::overcommitted_and_filling(usage(20, 80, 95, 0), double_with_reserve(), 95, 15)]
#[case::overcommitted_and_full(usage(5, 95, 95, 0), double_with_reserve(), 95, 0)]
#[case::below_the_reserve(usage(3, 0, 0, 0), reserve(), 0, 0)]
#[case::being_taken(usage(100, 0, 20, 20), reserve(), 75, 75)]
#[case::being_taken_overcommitted(usage(50, 50, 60, 20), double_with_reserve(), 130, 25)]
#[case::capped(usage(100, 0, 0, 0), capped(40), 40, 40)]
#[case::capped_and_promised(usage(100, 0, 30, 0), capped(40), 10, 10)]
#[case::a_cap_above_the_space(usage(8, 0, 0, 0), capped(40), 8, 8)]
// A cap applies to its own pool only.
#[case::others(shared(), limits(), 10, 10)]
#[case::others_and_capped(shared(), capped(35), 5, 5)]
#[case::others_and_overcommitted(shared(), double(), 110, 80)]
// Blocks that ext4 reserves for root are not available.
#[case::root_reserve(root_reserve(), limits(), 95, 95)]
fn promisable_space(
    #[case] usage: SpaceUsage,
    #[case] limits: CapacityLimits,
    #[case] thin: u64,
    #[case] thick: u64,
) {
    let got = |p| capacity(&[usage], &limits, p, 0).available / GI;
    let got = [Provisioning::Thin, Provisioning::Thick].map(got);
    assert_eq!(got, [thin, thick]);
}

/// Another pool on the filesystem has promised 60 GiB.
fn shared() -> SpaceUsage {
    SpaceUsage {
        others: 60 * GI,
        ..usage(80, 20, 30, 0)
    }
}

fn root_reserve() -> SpaceUsage {
    let mut ext4 = usage(100, 0, 0, 0);
    ext4.filesystem.available_bytes = 95 * GI;
    ext4
}

#[test]
fn one_volume_is_limited() {
    let limits = CapacityLimits {
        max_volume_bytes: Some(10 * GI + 5),
        ..limits()
    };
    let large = capacity(&[usage(100, 0, 0, 0)], &limits, Provisioning::Thin, 0);
    assert_eq!((large.available, large.largest), (100 * GI, 10 * GI));
    let small = capacity(&[usage(4, 0, 0, 0)], &limits, Provisioning::Thin, 0);
    assert_eq!((small.available, small.largest), (4 * GI, 4 * GI));
}

#[test]
fn capacity_is_whole_blocks() {
    let mut odd = usage(1, 0, 0, 0);
    odd.filesystem.available_bytes += 4095;
    assert_eq!(
        capacity(&[odd], &limits(), Provisioning::Thin, 0).available,
        GI
    );
}

#[test]
fn every_filesystem_below_must_have_the_space() {
    // An empty image of 100 GiB on a filesystem with 8 GiB left.
    let both = [usage(100, 0, 0, 0), usage(8, 0, 0, 0)];
    for provisioning in [Provisioning::Thin, Provisioning::Thick] {
        let capacity = capacity(&both, &limits(), provisioning, 0);
        assert_eq!(capacity.available, 8 * GI, "{provisioning:?}");
        let request = |gi| SpaceRequest::volume(gi * GI, provisioning);
        assert_eq!(admit(&both, &limits(), request(8)), Ok(()));
        assert_eq!(admit(&both, &limits(), request(9)), Err(8 * GI));
    }
    let none = capacity(&[], &limits(), Provisioning::Thin, 0);
    assert_eq!(none, Capacity::default());
}

/// Free space below in GiB, the part of it that the image holds already, what the image lacks, and
/// what thick volumes can be promised. The pool has 60 GiB free.
#[rstest]
#[case::whole_image(&[], 0, 60)]
#[case::fits(&[(80, 0)], 40, 60)]
#[case::fits_exactly(&[(40, 0)], 40, 40)]
#[case::does_not_fit(&[(39, 0)], 40, 0)]
#[case::held_already(&[(60, 20)], 40, 60)]
#[case::held_is_not_free(&[(59, 20)], 40, 0)]
#[case::not_on_the_last_disk(&[(80, 0), (39, 0)], 40, 0)]
fn a_thick_volume_needs_the_whole_image(
    #[case] below: &[(u64, u64)],
    #[case] lacks: u64,
    #[case] thick: u64,
) {
    let below = below.iter().map(|(free, unused)| SpaceUsage {
        unused: unused * GI,
        ..usage(*free, 0, 0, 0)
    });
    let all: Vec<_> = std::iter::once(usage(60, 0, 0, 0)).chain(below).collect();
    let promised = capacity(&all, &limits(), Provisioning::Thick, lacks * GI);
    assert_eq!(promised.available, thick * GI);
}

/// The accounting, the limits, the requested volume in GiB, and the size that would fit.
#[rstest]
#[case::fits(usage(10, 0, 0, 0), limits(), 10, Provisioning::Thin, Ok(()))]
#[case::too_large(usage(10, 0, 0, 0), limits(), 11, Provisioning::Thin, Err(10))]
#[case::thick_fits(usage(10, 0, 0, 0), limits(), 10, Provisioning::Thick, Ok(()))]
#[case::thick_in_a_full_pool(usage(5, 95, 95, 0), double(), 6, Provisioning::Thick, Err(5))]
#[case::thin_in_a_full_pool(usage(5, 95, 95, 0), double(), 6, Provisioning::Thin, Ok(()))]
#[case::being_taken(usage(50, 0, 30, 30), double(), 21, Provisioning::Thick, Err(20))]
#[case::nothing_requested(usage(0, 0, 100, 9), limits(), 0, Provisioning::Thin, Ok(()))]
fn admission(
    #[case] usage: SpaceUsage,
    #[case] limits: CapacityLimits,
    #[case] gi: u64,
    #[case] provisioning: Provisioning,
    #[case] expected: Result<(), u64>,
) {
    let request = SpaceRequest::volume(gi * GI, provisioning);
    let admitted = admit(&[usage], &limits, request);
    assert_eq!(admitted, expected.map_err(|gi| gi * GI));
}

fn image(id: u128, eldest: Option<u128>, allocated: u64) -> Image {
    Image {
        id: Uuid::from_u128(id),
        eldest: eldest.map(Uuid::from_u128),
        allocated,
        is_kept_base: false,
    }
}

#[test]
fn families_count_once() {
    let lone = [image(1, None, 5), image(2, None, 7)];
    let family = [
        image(1, None, 5),
        image(2, Some(1), 7),
        image(3, Some(2), 6),
        image(4, None, 1),
    ];
    let orphans = [image(2, Some(1), 7), image(3, Some(1), 6)];
    // The snapshot between a volume and the one restored from it is gone.
    let grandchild = [image(1, None, 5), image(3, Some(1), 6)];
    let circle = [image(1, Some(2), 5), image(2, Some(1), 7)];
    for (name, images, shared, apart) in [
        ("none", &[][..], 0, 0),
        ("lone", &lone, 12, 12),
        ("family", &family, 8, 19),
        ("their source is gone", &orphans, 7, 13),
        ("what is between them is gone", &grandchild, 6, 11),
    ] {
        assert_eq!(held(images, true), shared, "{name}");
        assert_eq!(held(images, false), apart, "{name}");
    }
    // A cycle in broken records terminates too.
    assert!(held(&circle, true) <= 12);
}

#[test]
fn images_have_the_smaller_of_two_measurements() {
    fn images(all: &[(u128, u64)]) -> Vec<Image> {
        let all = all.iter();
        all.map(|(id, bytes)| image(*id, None, *bytes)).collect()
    }
    for (name, before, after, expected) in [
        ("it stays", &[(1, 5)][..], &[(1, 5)][..], 5),
        ("it grows", &[(1, 5)], &[(1, 7)], 5),
        ("it shrinks", &[(1, 7)], &[(1, 5)], 5),
        ("it comes", &[], &[(1, 5)], 0),
        ("it goes", &[(1, 5)], &[], 0),
        ("two change", &[(1, 5), (2, 3)], &[(2, 3), (3, 7)], 3),
    ] {
        let both = at_least(&images(before), &images(after));
        assert_eq!(held(&both, false), expected, "{name}");
    }
}

#[test]
fn a_kept_base_counts_as_held_as_far_as_it_is_the_largest() {
    let base = |id, eldest, allocated| Image {
        is_kept_base: true,
        ..image(id, eldest, allocated)
    };
    let shared = [image(1, None, 5), base(2, Some(1), 5)];
    let trimmed = [image(1, None, 2), base(2, Some(1), 5)];
    let empty = [image(1, None, 0), base(2, Some(1), 5), base(3, Some(1), 6)];
    let beside = [image(1, None, 2), image(3, Some(1), 4), base(2, Some(1), 5)];
    let other = [image(4, None, 7), image(1, None, 2), base(2, Some(1), 5)];
    for (name, images, expected) in [
        ("no base", &shared[..1], 0),
        ("its volume is as large", &shared, 0),
        ("its volume was trimmed", &trimmed, 3),
        ("its volume is empty", &empty, 6),
        ("a snapshot is larger than the volume", &beside, 1),
        ("a larger one of another family", &other, 3),
    ] {
        assert_eq!(held_by_kept_bases(images), expected, "{name}");
    }
}

/// Steps along the whole line for each image would take minutes.
#[test]
fn a_long_line_of_copies_is_one_family() {
    let mut images: Vec<Image> = (0..100_000)
        .map(|id: u128| image(id, id.checked_sub(1), 5))
        .collect();
    assert_eq!(held(&images, true), 5);
    images.reverse();
    assert_eq!(held(&images, true), 5);
}
