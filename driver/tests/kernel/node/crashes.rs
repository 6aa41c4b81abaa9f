//! Power cuts: a copy of an image while it is mounted is what a disk has after one.

use std::fs::File;
use std::io::Write;

use hostloop_driver::kernel::{Filesystems, FsState, FsType};

use super::Rig;
use crate::testkit::*;
use crate::tools::{arg, run};

/// Volumes of earlier versions may have fast commits, which e2fsck drops.
#[test]
fn what_fsync_has_written_survives_a_power_cut_with_fast_commits() {
    const ROUNDS: usize = 6;
    /// The journal of a smaller filesystem has no room for fast commits.
    const BYTES: u64 = 160 * MI;
    let rig = Rig::new();
    let cap = mount("ext4");
    let [id, crashed] = [(); 2].map(|()| rig.volume(ext4(), BYTES));
    let image = |id| rig.path(format!("volumes/{id}/image"));
    run("tune2fs", &["-O", "fast_commit", arg(&image(id))]);
    rig.stage(id, "a", &cap).unwrap();
    rig.stage(crashed, "b", &cap).unwrap();
    rig.unstage(crashed, "b").unwrap();
    rig.assert_detached(crashed);
    let content = |round: usize| pattern(round as u8 + 1, 5000);
    let copy = |round: usize| rig.path(format!("cut{round}"));
    for round in 0..ROUNDS {
        let mut file = File::create(rig.staging("a").join(format!("file{round}"))).unwrap();
        file.write_all(&content(round)).unwrap();
        file.sync_all().unwrap();
        run(
            "cp",
            &["--sparse=always", arg(&image(id)), arg(&copy(round))],
        );
    }
    rig.unstage(id, "a").unwrap();

    for round in 0..ROUNDS {
        run(
            "cp",
            &["--sparse=always", arg(&copy(round)), arg(&image(crashed))],
        );
        let state = rig.kernel.fs_state(&image(crashed), FsType::Ext4).unwrap();
        assert_eq!(
            state,
            FsState {
                unreplayed: true,
                needs_check: false
            },
            "{round}"
        );
        rig.stage(crashed, "b", &cap).unwrap();
        for written in 0..=round {
            let path = rig.staging("b").join(format!("file{written}"));
            let read = std::fs::read(&path).unwrap_or_else(|e| panic!("{round} {written}: {e}"));
            assert!(
                read == content(written),
                "{round}: {} bytes of {written}",
                read.len()
            );
        }
        rig.unstage(crashed, "b").unwrap();
        rig.assert_detached(crashed);
        run("e2fsck", &["-f", "-n", arg(&image(crashed))]);
    }
}

/// The journal of a filesystem that has met an error says so, and so does the superblock after its
/// replay.
#[test]
fn a_filesystem_with_an_error_is_replayed_and_then_checked() {
    let rig = Rig::new();
    let cap = mount("ext4");
    let [id, crashed] = [(); 2].map(|()| rig.volume(ext4(), 32 * MI));
    let image = |id| rig.path(format!("volumes/{id}/image"));
    rig.stage(id, "a", &cap).unwrap();
    let mut file = File::create(rig.staging("a").join("file")).unwrap();
    file.write_all(&pattern(1, 5000)).unwrap();
    file.sync_all().unwrap();
    drop(file);
    run(
        "cp",
        &["--sparse=always", arg(&image(id)), arg(&image(crashed))],
    );
    rig.unstage(id, "a").unwrap();
    run(
        "debugfs",
        &["-w", "-R", "set_super_value state 2", arg(&image(crashed))],
    );
    let state = || rig.kernel.fs_state(&image(crashed), FsType::Ext4).unwrap();
    assert_eq!(
        state(),
        FsState {
            unreplayed: true,
            needs_check: true
        }
    );

    rig.stage(crashed, "b", &cap).unwrap();
    assert_written(&rig.staging("b").join("file"), 1, 5000);
    rig.unstage(crashed, "b").unwrap();
    rig.assert_detached(crashed);
    assert_eq!(state(), FsState::default());
}
