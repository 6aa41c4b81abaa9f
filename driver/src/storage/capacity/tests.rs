use super::*;

const GI: u64 = 1 << 30;

fn limits() -> Limits {
    Limits {
        overcommit: 1.0,
        reserve: Reserve::Bytes(0),
        max_volume_bytes: None,
        capacity_bytes: None,
    }
}

/// A filesystem of 100 GiB, with its free, held, promised and reserved space in GiB.
fn books(free: u64, ours: u64, promised: u64, taking: u64) -> SpaceUsage {
    SpaceUsage {
        usage: FsUsage {
            total_bytes: 100 * GI,
            free_bytes: free * GI,
            available_bytes: free * GI,
            ..FsUsage::default()
        },
        ours: ours * GI,
        promised: promised * GI,
        others: 0,
        taking: taking * GI,
    }
}

#[test]
fn what_can_be_promised() {
    let reserve = Limits {
        reserve: Reserve::Percent(5.0),
        ..limits()
    };
    let double = Limits {
        overcommit: 2.0,
        ..reserve.clone()
    };
    let capped = Limits {
        capacity_bytes: Some(40 * GI),
        ..limits()
    };
    let table = [
        // books, limits, thin, thick
        ("empty", books(100, 0, 0, 0), limits(), 100, 100),
        ("a reserve", books(100, 0, 0, 0), reserve.clone(), 95, 95),
        (
            "a third party's data",
            books(70, 0, 0, 0),
            reserve.clone(),
            65,
            65,
        ),
        (
            "promised, not taken",
            books(100, 0, 30, 0),
            reserve.clone(),
            65,
            65,
        ),
        (
            "promised and taken",
            books(70, 30, 30, 0),
            reserve.clone(),
            65,
            65,
        ),
        (
            "thin volumes hold some",
            books(90, 10, 30, 0),
            reserve.clone(),
            65,
            65,
        ),
        ("all promised", books(100, 0, 95, 0), reserve.clone(), 0, 0),
        (
            "more promised than there is",
            books(10, 5, 99, 0),
            reserve.clone(),
            0,
            0,
        ),
        (
            "overcommitted",
            books(100, 0, 95, 0),
            double.clone(),
            95,
            95,
        ),
        (
            "overcommitted and filling",
            books(20, 80, 95, 0),
            double.clone(),
            95,
            15,
        ),
        (
            "overcommitted and full",
            books(5, 95, 95, 0),
            double.clone(),
            95,
            0,
        ),
        (
            "below the reserve",
            books(3, 0, 0, 0),
            reserve.clone(),
            0,
            0,
        ),
        ("being taken", books(100, 0, 20, 20), reserve, 75, 75),
        (
            "being taken, overcommitted",
            books(50, 50, 60, 20),
            double,
            130,
            25,
        ),
        ("capped", books(100, 0, 0, 0), capped.clone(), 40, 40),
        (
            "capped and promised",
            books(100, 0, 30, 0),
            capped.clone(),
            10,
            10,
        ),
        ("a cap above what is there", books(8, 0, 0, 0), capped, 8, 8),
    ];
    for (name, books, limits, thin, thick) in table {
        let got = |p| capacity(&[books], &limits, p).available / GI;
        assert_eq!(got(Provisioning::Thin), thin, "{name}: thin");
        assert_eq!(got(Provisioning::Thick), thick, "{name}: thick");
    }
}

#[test]
fn one_volume_is_limited() {
    let limits = Limits {
        max_volume_bytes: Some(10 * GI + 5),
        ..limits()
    };
    let large = capacity(&[books(100, 0, 0, 0)], &limits, Provisioning::Thin);
    assert_eq!((large.available, large.largest), (100 * GI, 10 * GI));
    let small = capacity(&[books(4, 0, 0, 0)], &limits, Provisioning::Thin);
    assert_eq!((small.available, small.largest), (4 * GI, 4 * GI));
}

#[test]
fn answers_are_whole_blocks() {
    let mut odd = books(1, 0, 0, 0);
    odd.usage.available_bytes += 4095;
    assert_eq!(
        capacity(&[odd], &limits(), Provisioning::Thin).available,
        GI
    );
}

#[test]
fn what_others_are_promised_is_not_promised_again() {
    let shared = SpaceUsage {
        others: 60 * GI,
        ..books(80, 20, 30, 0)
    };
    let one = |limits: &Limits| capacity(&[shared], limits, Provisioning::Thin).available / GI;
    assert_eq!(one(&limits()), 10);
    // A cap applies to its own pool only.
    let capped = Limits {
        capacity_bytes: Some(35 * GI),
        ..limits()
    };
    assert_eq!(one(&capped), 5);
    let double = Limits {
        overcommit: 2.0,
        ..limits()
    };
    assert_eq!(one(&double), 110);
}

#[test]
fn every_filesystem_below_must_have_the_space() {
    // An empty image of 100 GiB on a filesystem with 8 GiB left.
    let both = [books(100, 0, 0, 0), books(8, 0, 0, 0)];
    for provisioning in [Provisioning::Thin, Provisioning::Thick] {
        assert_eq!(
            capacity(&both, &limits(), provisioning).available,
            8 * GI,
            "{provisioning:?}"
        );
        let fits = |gi: u64| {
            admit(
                &both,
                &limits(),
                SpaceRequest::volume(gi * GI, provisioning),
            )
        };
        assert_eq!(fits(8), Ok(()));
        assert_eq!(fits(9), Err(8 * GI));
    }
    assert_eq!(
        capacity(&[], &limits(), Provisioning::Thin),
        Capacity::default()
    );
}

#[test]
fn root_reserved_blocks_are_not_ours_to_give() {
    let mut ext4 = books(100, 0, 0, 0);
    ext4.usage.available_bytes = 95 * GI;
    assert_eq!(
        capacity(&[ext4], &limits(), Provisioning::Thin).available,
        95 * GI
    );
}

#[test]
fn what_is_admitted() {
    let thin = |gi| SpaceRequest::volume(gi * GI, Provisioning::Thin);
    let thick = |gi| SpaceRequest::volume(gi * GI, Provisioning::Thick);
    let double = Limits {
        overcommit: 2.0,
        ..limits()
    };
    let table = [
        ("fits", books(10, 0, 0, 0), limits(), thin(10), Ok(())),
        ("does not", books(10, 0, 0, 0), limits(), thin(11), Err(10)),
        (
            "thick fits",
            books(10, 0, 0, 0),
            limits(),
            thick(10),
            Ok(()),
        ),
        (
            "thick on a full pool",
            books(5, 95, 95, 0),
            double.clone(),
            thick(6),
            Err(5),
        ),
        (
            "thin on a full pool",
            books(5, 95, 95, 0),
            double.clone(),
            thin(6),
            Ok(()),
        ),
        (
            "another is taking it",
            books(50, 0, 30, 30),
            double,
            thick(21),
            Err(20),
        ),
        (
            "nothing wanted",
            books(0, 0, 100, 9),
            limits(),
            thin(0),
            Ok(()),
        ),
    ];
    for (name, books, limits, need, want) in table {
        assert_eq!(
            admit(&[books], &limits, need),
            want.map_err(|gi: u64| gi * GI),
            "{name}"
        );
    }
}

fn image(id: u128, source: Option<u128>, allocated: u64) -> Image {
    Image {
        id: Uuid::from_u128(id),
        source: source.map(Uuid::from_u128),
        allocated,
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
    let circle = [image(1, Some(2), 5), image(2, Some(1), 7)];
    for (name, images, shared, apart) in [
        ("none", &[][..], 0, 0),
        ("lone", &lone, 12, 12),
        ("family", &family, 8, 19),
        ("their source is gone", &orphans, 7, 13),
    ] {
        assert_eq!(held(images, true), shared, "{name}");
        assert_eq!(held(images, false), apart, "{name}");
    }
    // A cycle in the sources terminates too.
    assert!(held(&circle, true) <= 12);
}
