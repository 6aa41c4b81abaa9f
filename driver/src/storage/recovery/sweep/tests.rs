use super::*;
use crate::storage::PoolId;
use crate::testkit::Site;

fn step(step: Step<'_>) -> String {
    match step {
        Step::Remove => "remove".to_owned(),
        Step::PutBack(kind) => format!("put back {kind:?}"),
        Step::Keep(entry) => format!("keep {}", entry.inode),
        Step::Leave => "leave".to_owned(),
    }
}

/// A filesystem without a journal may have kept its name under `snapshots/`, too.
#[test]
fn a_deleted_snapshot_that_keeps_its_image_is_left() {
    let id = SnapshotId::generate(PoolId::generate());
    let left = SweptEntry {
        from: Left::Trash,
        name: crate::storage::file_names::kept_name(id),
        inode: 1,
    };
    let in_place = |inode| InPlace {
        kind: EntryKind::Snapshots,
        name: id.to_string(),
        inode,
    };
    let holds = Holding {
        mark: false,
        image: true,
        base: true,
    };
    for (in_place, expected) in [
        (vec![], "leave"),
        (vec![in_place(2)], "leave"),
        (vec![in_place(1)], "keep 1"),
    ] {
        assert_eq!(step(decide(&left, holds, &in_place)), expected);
    }
}

/// The entry and its inode, whether it has the mark and an image, and what happens to it.
#[test]
fn what_is_in_place_is_never_removed() {
    let pool = PoolId::generate();
    let [one, two] = [0, 1].map(|_| VolumeId::generate(pool).to_string());
    let [group, snapshot] = [
        GroupId::generate(pool).to_string(),
        SnapshotId::generate(pool).to_string(),
    ];
    let at = |kind, name: &str, inode| InPlace {
        kind,
        name: name.to_owned(),
        inode,
    };
    let in_place = [
        at(EntryKind::Volumes, &one, 1),
        at(EntryKind::Volumes, "notes", 2),
        at(EntryKind::Groups, &group, 3),
    ];
    for (name, inode, mark, image, expected) in [
        (one.as_str(), 1, false, true, "keep 1"),
        (&one, 1, true, false, "keep 1"),
        // A freed inode was given to another entry.
        (&two, 1, false, true, "keep 1"),
        (&two, 2, false, true, "keep 2"),
        (&one, 9, false, true, "keep 1"),
        (&one, 9, true, true, "keep 1"),
        (&one, 9, false, false, "remove"),
        (&two, 9, false, true, "remove"),
        (&two, 9, true, true, "put back Volumes"),
        (&snapshot, 9, true, true, "put back Snapshots"),
        (&group, 3, false, false, "keep 3"),
        (&group, 9, false, false, "remove"),
        (&group, 9, true, false, "put back Groups"),
        ("other", 9, true, true, "remove"),
    ] {
        for from in [Left::Incoming, Left::Trash] {
            let left = SweptEntry {
                from,
                name: name.to_owned(),
                inode,
            };
            let holds = Holding {
                mark,
                image,
                base: false,
            };
            let step = step(decide(&left, holds, &in_place));
            assert_eq!(step, expected, "{name} {inode} {mark} {image}");
        }
    }
}

/// A person copied a deleted volume back, and left the old directory where it was.
#[test]
fn a_volume_with_a_second_directory_is_kept_and_not_deleted() {
    for from in ["incoming", "trash"] {
        let mut site = Site::fake(&["a"]);
        let id = site.make("one").id;
        site.close();
        let other = site.path(format!("{from}/{id}"));
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join("image"), "bytes").unwrap();
        site.open();
        assert!(other.join("image").exists());
        let noted = site.pools().noted_problems();
        assert_eq!(noted.len(), 1, "{noted:?}");
        assert!(
            noted[0]
                .problem
                .to_string()
                .contains("another directory has its ID"),
            "{noted:?}"
        );
        let refused = site.pools().delete_volume(&id).unwrap_err();
        assert!(
            refused.to_string().contains(&format!("{from}/{id}")),
            "{refused}"
        );
        assert_eq!(site.entries().len(), 2);

        // The advice is to move one of them away.
        std::fs::rename(&other, site.root().join("away")).unwrap();
        site.tend();
        assert_eq!(site.pools().noted_problems(), []);
        site.pools().delete_volume(&id).unwrap();
        assert_eq!(site.entries(), [""; 0]);
    }
}

/// A repair of the filesystem kept the wrong name of an entry with the mark.
#[test]
fn a_marked_entry_is_put_back() {
    for from in ["incoming", "trash"] {
        let mut site = Site::fake(&["a"]);
        site.kernel.lose_journal();
        let [kept, freed] = ["kept", "freed"].map(|name| site.make(name));
        site.open();
        site.pool()
            .layout
            .mark(EntryKind::Volumes, &kept.id.to_string())
            .unwrap();
        site.close();
        for id in [kept.id, freed.id] {
            let at = |dir: &str| site.path(format!("{dir}/{id}"));
            std::fs::rename(at("volumes"), at(from)).unwrap();
        }
        site.open();
        assert_eq!(site.entries(), [format!("volumes/{}", kept.id)]);
        assert_eq!(site.volume(kept.id), kept);
        assert_eq!(site.pools().noted_problems(), []);
        // The mark is gone, so a deletion that is interrupted stays one.
        let entry = site.path(format!("volumes/{}", kept.id));
        assert!(!entry.join("in-place").exists());
    }
}
