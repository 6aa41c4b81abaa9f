use hostloop_fake_kernel::Model;
use rstest::rstest;

use crate::kernel::{Filesystems, FsState};
use crate::testkit::*;

type Rig = crate::testkit::Rig<Model>;

const CLEAN: FsState = FsState {
    unreplayed: false,
    needs_check: false,
};
const CRASHED: FsState = FsState {
    unreplayed: true,
    needs_check: false,
};
const ERRORS: FsState = FsState {
    unreplayed: false,
    needs_check: true,
};
const BOTH: FsState = FsState {
    unreplayed: true,
    needs_check: true,
};

/// The model refuses tools on a journal that no mount has replayed.
#[rstest]
#[case::clean(CLEAN, None, "mount")]
#[case::crashed(CRASHED, None, "mount")]
#[case::errors(ERRORS, None, "check mount")]
#[case::errors_in_a_crash(BOTH, None, "mount unmount check mount unmount mount")]
#[case::damage(CLEAN, Some(libc::EUCLEAN), "mount check mount")]
#[case::a_bad_checksum(CLEAN, Some(libc::EBADMSG), "mount check mount")]
#[case::an_old_kernel_says_less(CLEAN, Some(libc::EINVAL), "mount check mount")]
fn the_kernel_replays_and_a_check_runs_only_if_it_is_needed(
    #[case] state: FsState,
    #[case] mount_fails: Option<i32>,
    #[case] expected: &str,
) {
    let (rig, id) = used();
    let image = rig.path(format!("volumes/{id}/image"));
    rig.kernel.set_fs_state(&image, state).unwrap();
    if let Some(number) = mount_fails {
        rig.kernel.fail("mount", 1, number);
    }
    rig.stage(&id, "a", &mount("ext4")).unwrap();
    assert_eq!(changes(&rig).join(" "), expected);
    rig.unstage(&id, "a").unwrap();
}

#[rstest]
#[case::options_are_no_damage(CRASHED, libc::EINVAL)]
#[case::the_disk_is_no_damage(CRASHED, libc::EIO)]
#[case::in_use(CLEAN, libc::EBUSY)]
#[case::no_memory(CLEAN, libc::ENOMEM)]
fn no_check_replays_a_journal_because_of_another_error(#[case] state: FsState, #[case] fails: i32) {
    let (rig, id) = used();
    let image = rig.path(format!("volumes/{id}/image"));
    rig.kernel.set_fs_state(&image, state).unwrap();
    rig.kernel.fail("mount", 1, fails);
    rig.stage(&id, "a", &mount("ext4")).unwrap_err();
    assert_eq!(changes(&rig), ["mount"]);
    let path = std::path::Path::new(&image);
    assert_eq!(
        rig.kernel
            .fs_state(path, crate::kernel::FsType::Ext4)
            .unwrap(),
        state
    );
    rig.stage(&id, "a", &mount("ext4")).unwrap();
}

/// A volume with a filesystem that was mounted before.
fn used() -> (Rig, String) {
    let rig = Rig::new();
    let id = rig.volume(ext4(), 16 * MI).to_string();
    rig.stage(&id, "a", &mount("ext4")).unwrap();
    rig.unstage(&id, "a").unwrap();
    rig.kernel.take_effects();
    (rig, id)
}

/// What was done to the filesystem.
fn changes(rig: &Rig) -> Vec<&'static str> {
    let mut effects = rig.kernel.take_effects();
    effects.retain(|op| ["mount", "unmount", "check"].contains(op));
    effects
}
