//! Looks that follow the kernel's notices, against looks that read everything. Other programs make
//! the changes, behind the driver's back.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use hostloop_driver::kernel::linux::{Linux, MountQueries};
use hostloop_driver::kernel::{
    BindFlags, FsType, LoopDevices, LoopInfo, LoopScope, MountEntry, MountTable, Mounts, confirm,
    file_id,
};
use rstest::rstest;

use super::scratch::{Scratch, lasting, size};
use crate::testkit::{MI, PATIENCE, loops_beneath};
use crate::tools::{arg, attach_late, loops_of, own_namespace, run, until};

/// A scratch directory on a kernel that shows this much of mounts.
fn scratch(queries: MountQueries) -> Scratch {
    let mut s = Scratch::new();
    s.kernel = Linux::following(queries);
    let by_id = s
        .kernel
        .known_mounts()
        .unwrap()
        .entries
        .iter()
        .all(|m| m.unique_id.is_some());
    assert_eq!(by_id, queries != MountQueries::Table);
    s
}

/// The scratch directory's part of a mount table, without what only one of two ways to read it
/// shows.
fn ours(s: &Scratch, table: &MountTable) -> Vec<MountEntry> {
    let shown = |option: &&str| matches!(*option, "ro" | "rw" | "discard");
    let ours = table
        .entries
        .iter()
        .filter(|m| m.mount_point.starts_with(s.path()));
    ours.cloned()
        .map(|mut entry| {
            let options: Vec<_> = entry.super_options.iter().filter(shown).collect();
            entry.super_options = options.join(",").as_str().into();
            MountEntry {
                unique_id: None,
                ..entry
            }
        })
        .collect()
}

/// Loop devices and mounts of the scratch directory, as they are known and confirmed.
fn known(s: &Scratch) -> (Vec<LoopInfo>, Vec<MountEntry>) {
    let end = Instant::now() + PATIENCE;
    loop {
        let table = s.kernel.known_mounts().unwrap();
        let loops = s
            .kernel
            .known_loops(LoopScope::All)
            .unwrap()
            .table
            .iter()
            .cloned()
            .collect();
        let loops = loops_beneath(loops, s.path());
        let mounts: Vec<_> = table
            .entries
            .iter()
            .filter(|m| m.mount_point.starts_with(s.path()))
            .collect();
        let points = mounts.iter().map(|m| &*m.mount_point);
        let at: Vec<_> = points.map(|path| (path, table.at(path))).collect();
        if confirm(&s.kernel, &loops.iter().collect::<Vec<_>>(), &mounts, &at) {
            return (loops, ours(s, &table));
        }
        assert!(Instant::now() < end, "a quiet directory is not confirmed");
    }
}

fn read(s: &Scratch) -> (Vec<LoopInfo>, Vec<MountEntry>) {
    let loops = loops_beneath(s.kernel.loops().unwrap(), s.path());
    (loops, ours(s, &s.kernel.mounts().unwrap()))
}

#[rstest]
fn what_is_known_follows_what_others_change(
    #[values(MountQueries::Table, MountQueries::ById, MountQueries::Counted)] queries: MountQueries,
) {
    let s = scratch(queries);
    let mount = |args: &[&str]| drop(run("mount", args));
    let (_image, device) = s.made("image", FsType::Ext4, size(FsType::Ext4));
    let node = device.path();
    // The kernel moves no mount that lies in a shared one.
    let private = s.dir("private");
    mount(&["-t", "tmpfs", "none", arg(&private)]);
    mount(&["--make-private", arg(&private)]);
    let path = |name: &str| private.join(name);
    for dir in ["a", "b", "with space", "tab\there", "c"] {
        std::fs::create_dir(path(dir)).unwrap();
    }
    std::fs::write(path("file"), "").unwrap();
    let at = |name: &str| arg(&path(name)).to_owned();
    type Change<'a> = (&'a str, Box<dyn Fn() + 'a>);
    let changes: Vec<Change<'_>> = vec![
        ("nothing", Box::new(|| {})),
        (
            "mount",
            Box::new(|| mount(&["-o", "noatime,discard", arg(&node), &at("a")])),
        ),
        ("bind", Box::new(|| mount(&["--bind", &at("a"), &at("b")]))),
        (
            "remount the bind read-only",
            Box::new(|| mount(&["-o", "remount,bind,ro", &at("b")])),
        ),
        (
            "bind with a space",
            Box::new(|| mount(&["--bind", &at("a"), &at("with space")])),
        ),
        (
            "bind with a tab",
            Box::new(|| mount(&["--bind", &at("a"), &at("tab\there")])),
        ),
        (
            "bind the device's node",
            Box::new(|| mount(&["--bind", arg(&node), &at("file")])),
        ),
        (
            "hide a mount",
            Box::new(|| mount(&["-t", "tmpfs", "none", &at("b")])),
        ),
        (
            "move",
            Box::new(|| mount(&["--move", &at("with space"), &at("c")])),
        ),
        ("unmount", Box::new(|| drop(run("umount", &[&at("c")])))),
        (
            "remount read-only",
            Box::new(|| mount(&["-o", "remount,ro", &at("a")])),
        ),
        (
            "unmount what hides",
            Box::new(|| drop(run("umount", &[&at("b")]))),
        ),
        (
            "unmount and mount at once",
            Box::new(|| {
                run("umount", &[&at("b")]);
                mount(&["--bind", &at("a"), &at("c")]);
            }),
        ),
        (
            "the driver unmounts",
            Box::new(|| s.kernel.unmount(&path("c")).unwrap()),
        ),
        (
            "the driver mounts and unmounts",
            Box::new(|| {
                s.kernel
                    .bind(&path("a"), &path("c"), BindFlags::default())
                    .unwrap();
                s.kernel
                    .bind(&path("a"), &path("b"), BindFlags::default())
                    .unwrap();
                s.kernel.unmount(&path("c")).unwrap();
            }),
        ),
        (
            "the driver unmounts, and others mount",
            Box::new(|| {
                s.kernel.unmount(&path("b")).unwrap();
                mount(&["--bind", &at("a"), &at("b")]);
            }),
        ),
        (
            "the driver mounts, and others unmount",
            Box::new(|| {
                s.kernel
                    .bind(&path("a"), &path("c"), BindFlags::default())
                    .unwrap();
                run("umount", &[&at("b")]);
            }),
        ),
        (
            "the driver unmounts, and others unmount",
            Box::new(|| {
                s.kernel
                    .bind(&path("a"), &path("b"), BindFlags::default())
                    .unwrap();
                s.kernel.unmount(&path("c")).unwrap();
                run("umount", &[&at("b")]);
            }),
        ),
        (
            "another device",
            Box::new(|| drop(run("losetup", &["-f", &at("other")]))),
        ),
        (
            "grow it",
            Box::new(|| {
                std::fs::File::options()
                    .write(true)
                    .open(path("other"))
                    .unwrap()
                    .set_len(2 * MI)
                    .unwrap();
                run("losetup", &["-c", &loops_of(&path("other"))[0]]);
            }),
        ),
        (
            "detach it",
            Box::new(|| drop(run("losetup", &["-d", &loops_of(&path("other"))[0]]))),
        ),
    ];
    std::fs::File::create(path("other"))
        .unwrap()
        .set_len(MI)
        .unwrap();
    for (what, change) in changes {
        change();
        // A device goes between the two looks if another program has it open for a moment.
        until(&format!("both agree, after: {what}"), || {
            known(&s) == read(&s)
        });
    }
}

#[rstest]
fn a_stale_detail_is_not_confirmed(
    #[values(MountQueries::Table, MountQueries::ById, MountQueries::Counted)] queries: MountQueries,
) {
    let s = scratch(queries);
    let image = s.image("image", 4 * MI);
    let device = s.kernel.loop_attach(&lasting(&image)).unwrap();
    let before = s.kernel.loop_info(device.minor).unwrap().unwrap();
    assert!(confirm(&s.kernel, &[&before], &[], &[]));
    let node = arg(&device.path()).to_owned();
    run("losetup", &["-c", &node]);
    image.set_len(8 * MI).unwrap();
    run("losetup", &["-c", &node]);
    assert!(!confirm(&s.kernel, &[&before], &[], &[]), "it has grown");
    let find = || {
        let known = s.kernel.known_loops(LoopScope::All).unwrap().table;
        known
            .iter()
            .find(|l| l.minor == device.minor)
            .unwrap()
            .clone()
    };
    assert_eq!(find().size_bytes, 8 * MI);
    run("losetup", &["-d", &node]);
    drop(device);
    // Another program can have it open for a moment.
    until("it is gone", || !confirm(&s.kernel, &[&before], &[], &[]));

    let (_image, _device, at) = s.mounted("fs", FsType::Ext4, size(FsType::Ext4));
    let at = at.canonicalize().unwrap();
    let entry = s.kernel.known_mounts().unwrap().at(&at).unwrap().clone();
    assert!(confirm(&s.kernel, &[], &[&entry], &[(&at, Some(&entry))]));
    assert!(
        !confirm(&s.kernel, &[], &[], &[(&at, None)]),
        "there is a mount"
    );
    run("mount", &["-o", "remount,ro", arg(&at)]);
    assert!(!confirm(&s.kernel, &[], &[&entry], &[]), "it is read-only");
    run("umount", &[arg(&at)]);
    assert!(!confirm(&s.kernel, &[], &[&entry], &[]), "it is gone");
    assert!(
        !confirm(&s.kernel, &[], &[], &[(&at, Some(&entry))]),
        "nothing is mounted there"
    );
    assert!(confirm(&s.kernel, &[], &[], &[(&at, None)]));
}

#[rstest]
fn a_mount_that_is_attached_long_after_it_was_made_is_found(
    #[values(MountQueries::Table, MountQueries::ById, MountQueries::Counted)] queries: MountQueries,
) {
    let test = || {
        own_namespace(&Linux::new(), Path::new("/nothing"));
        let s = scratch(queries);
        let (at, over) = (s.dir("late"), s.dir("over"));
        run("mount", &["-t", "tmpfs", "none", arg(&at)]);
        attach_late(&at, &over, || assert_eq!(known(&s), read(&s)));
        assert_eq!(known(&s), read(&s));
    };
    std::thread::scope(|scope| scope.spawn(test).join().unwrap());
}

/// The first look after an attach opens only devices that may be over its own image.
#[test]
fn a_look_for_one_image_leaves_other_images_devices_alone() {
    let s = Scratch::new();
    let names = ["vol-aa-01", "vol-aa-02"];
    let images = names.map(|name| {
        s.dir(name);
        s.image(&format!("{name}/image"), MI)
    });
    let none = BTreeSet::new();
    let of = |directory| LoopScope::Image {
        directory,
        minors: &none,
    };
    let find = |scope: LoopScope<'_>, minor| {
        let known = s.kernel.known_loops(scope).unwrap().table;
        known.iter().find(|l| l.minor == minor).cloned()
    };
    let paths = names.map(|name| s.path().join(name).join("image"));
    for path in &paths {
        run("losetup", &["-f", arg(path)]);
    }
    let minors = paths.each_ref().map(|path| {
        let device = loops_of(path).remove(0);
        device
            .strip_prefix("/dev/loop")
            .unwrap()
            .parse::<u32>()
            .unwrap()
    });
    let ids = images.each_ref().map(|image| file_id(image).unwrap());
    for (own, other) in [(0, 1), (1, 0)] {
        s.kernel.forget_loops();
        let mine = find(of(names[own]), minors[own]).unwrap();
        assert_eq!(mine.backing, Some(ids[own]));
        let theirs = find(of(names[own]), minors[other]).unwrap();
        assert_eq!(theirs.backing, None, "it was not asked");
        assert_eq!(
            theirs.backing_path,
            arg(&paths[other].canonicalize().unwrap())
        );
        let recorded = BTreeSet::from([minors[other]]);
        let scope = LoopScope::Image {
            directory: names[own],
            minors: &recorded,
        };
        assert_eq!(
            find(scope, minors[other]).unwrap().backing,
            Some(ids[other])
        );
    }
    s.kernel.forget_loops();
    find(of(names[0]), minors[0]);
    let all = minors.map(|minor| find(LoopScope::All, minor).unwrap().backing);
    assert_eq!(all, ids.map(Some));
    for minor in minors {
        run("losetup", &["-d", &format!("/dev/loop{minor}")]);
    }
}
