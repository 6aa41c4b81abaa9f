use std::cell::Cell;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use hostloop_fake_kernel::Model;
use parking_lot::Mutex;
use tempfile::TempDir;

use super::*;
use crate::kernel::{Freeze, FsType, LoopDevice};
use crate::storage::{PoolId, Provisioning};
use crate::testkit::{PATIENCE, attach, make_fs, mount_fs};

/// A limit that ends within the test. The freeze itself takes a part of it on a busy machine.
const SHORT: Duration = Duration::from_secs(2);

/// Runs a test with limits that end within it, until one is long enough: true of a test that came to
/// its point before the limit.
fn at_a_limit(test: impl Fn(Duration) -> bool) {
    let is_enough = [SHORT, 5 * SHORT, 25 * SHORT].into_iter().any(test);
    assert!(is_enough, "it came too late each time");
}

/// The writes to the records, and whether a filesystem was frozen at that time.
#[derive(Default)]
struct Notes {
    calls: Mutex<Vec<String>>,
    fail_write: bool,
}

impl Notes {
    fn note(&self, what: &str, volumes: &[VolumeId]) {
        let call = format!("{what} {}", volumes.len());
        self.calls.lock().push(call);
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().clone()
    }
}

impl Intents for Notes {
    fn write(&self, volumes: &[VolumeId]) -> Result<()> {
        self.note("write", volumes);
        if self.fail_write {
            return Err(Error::Refused("no record today".to_owned()));
        }
        Ok(())
    }

    fn clear(&self, volumes: &[VolumeId]) -> Result<()> {
        self.note("clear", volumes);
        Ok(())
    }
}

/// A volume's image and its loop device.
struct Volume {
    id: VolumeId,
    image: FileId,
    file: File,
    at: PathBuf,
    device: Option<LoopDevice>,
}

impl Volume {
    fn device(&self) -> &LoopDevice {
        self.device.as_ref().unwrap()
    }

    fn target(&self) -> FreezeTarget {
        FreezeTarget {
            volume: self.id,
            image: self.image,
            raw_staged: false,
            freeze_intent: false,
        }
    }
}

/// A fake machine with volumes.
struct Bench {
    model: Arc<Model>,
    kernel: Arc<dyn Kernel>,
    dir: TempDir,
    notes: Notes,
    check: fn() -> Result<()>,
}

impl Bench {
    fn new() -> Bench {
        let model = Arc::new(Model::new());
        Bench {
            kernel: Arc::clone(&model) as Arc<dyn Kernel>,
            model,
            dir: TempDir::new().unwrap(),
            notes: Notes::default(),
            check: || Ok(()),
        }
    }

    fn at_rest(&self, name: &str) -> Volume {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        let file = options.open(self.dir.path().join(name)).unwrap();
        file.set_len(1 << 20).unwrap();
        let at = self.dir.path().join(format!("{name}-mount"));
        std::fs::create_dir(&at).unwrap();
        Volume {
            id: VolumeId::generate(PoolId::generate()),
            image: kernel::file_id(&file).unwrap(),
            file,
            at,
            device: None,
        }
    }

    fn attached(&self, name: &str) -> Volume {
        let mut volume = self.at_rest(name);
        volume.device = Some(attach(&*self.kernel, &volume.file, false));
        volume
    }

    fn mounted(&self, name: &str) -> Volume {
        let volume = self.attached(name);
        make_fs(&*self.kernel, volume.device(), FsType::Ext4);
        self.mount(&volume, &volume.at);
        volume
    }

    fn mount(&self, volume: &Volume, at: &Path) {
        mount_fs(&*self.kernel, volume.device(), at, FsType::Ext4);
    }

    fn frozen(&self, volume: &Volume) -> bool {
        let device = volume.device.as_ref();
        device.is_some_and(|d| self.model.is_frozen(d.minor))
    }

    fn did(&self, op: &str) -> usize {
        self.model.effects().iter().filter(|e| e.op == op).count()
    }

    fn freeze(&self, volume: &Volume) {
        let at = File::open(&volume.at).unwrap();
        assert_eq!(self.kernel.freeze(&at).unwrap(), Freeze::Frozen);
    }

    fn thaw(&self, volume: &Volume) {
        self.kernel.thaw(&File::open(&volume.at).unwrap()).unwrap();
    }

    fn quiesced<T>(
        &self,
        targets: &[FreezeTarget],
        max_freeze: Duration,
        copy: impl FnOnce(&Still) -> Result<T>,
    ) -> Result<T> {
        let limits = FreezeLimits {
            max_freeze,
            check: &self.check,
        };
        quiesced(&self.kernel, targets, &limits, &self.notes, copy)
    }

    /// Copies the volume's image, without reflinks.
    fn copy(&self, still: &Still, volume: &Volume) -> Result<Copied> {
        let want = NewImage {
            len: 1 << 20,
            provisioning: Provisioning::Thin,
            reflinks: false,
            thick_source: false,
        };
        let to = tempfile::tempfile_in(self.dir.path()).unwrap();
        still.copy(volume.image, &volume.file, &to, &want)
    }
}

fn not_copied<T>(_: &Still) -> Result<T> {
    unreachable!("the copy must not begin")
}

fn cannot_freeze<T: std::fmt::Debug>(result: Result<T>, words: &str) {
    match result {
        Err(Error::CannotFreeze(why)) if why.contains(words) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_volume_at_rest_needs_nothing() {
    let mut bench = Bench::new();
    bench.check = || panic!("nothing is frozen, so no space is needed");
    let volume = bench.at_rest("a");
    let done = bench.quiesced(&[volume.target()], PATIENCE, |still| {
        assert!(!still.stop());
        Ok(7)
    });
    assert_eq!(done.unwrap(), 7);
    assert!(bench.model.effects().is_empty() && bench.notes.calls().is_empty());
}

#[test]
fn mounted_volumes_are_frozen_together_for_the_copy_only() {
    let bench = Bench::new();
    let volumes = [bench.mounted("a"), bench.at_rest("b"), bench.mounted("c")];
    let targets: Vec<FreezeTarget> = volumes.iter().map(Volume::target).collect();
    bench
        .quiesced(&targets, PATIENCE, |still| {
            let frozen = volumes.iter().map(|v| bench.frozen(v));
            assert_eq!(frozen.collect::<Vec<_>>(), [true, false, true]);
            assert_eq!(bench.notes.calls(), ["write 2"]);
            assert!(!still.stop());
            Ok(())
        })
        .unwrap();
    assert!(volumes.iter().all(|v| !bench.frozen(v)));
    assert_eq!(bench.notes.calls(), ["write 2", "clear 2"]);
}

#[test]
fn a_copy_that_fails_or_panics_thaws() {
    for panics in [false, true] {
        let bench = Bench::new();
        let volume = bench.mounted("a");
        let copy = || {
            bench.quiesced::<()>(&[volume.target()], PATIENCE, |_| {
                assert!(bench.frozen(&volume));
                assert!(!panics, "a bug");
                Err(Error::Refused("so there".to_owned()))
            })
        };
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(copy)) {
            Ok(failed) => assert!(!panics && matches!(failed, Err(Error::Refused(_)))),
            Err(_) => assert!(panics),
        }
        assert!(!bench.frozen(&volume));
        assert_eq!(bench.notes.calls(), ["write 1", "clear 1"]);
    }
}

#[test]
fn one_that_cannot_be_frozen_thaws_the_others() {
    let bench = Bench::new();
    let volumes = [bench.mounted("a"), bench.mounted("b"), bench.mounted("c")];
    let targets: Vec<FreezeTarget> = volumes.iter().map(Volume::target).collect();
    bench.model.fail("freeze", 2, libc::EIO);
    let refused = bench.quiesced::<()>(&targets, PATIENCE, not_copied);
    cannot_freeze(refused, "can't be frozen");
    assert!(volumes.iter().all(|v| !bench.frozen(v)));
    assert_eq!(bench.notes.calls(), ["write 3", "clear 3"]);
}

#[test]
fn without_room_or_its_intent_nothing_is_frozen() {
    for fail_write in [false, true] {
        let mut bench = Bench::new();
        bench.notes.fail_write = fail_write;
        if !fail_write {
            bench.check = || Err(Error::Refused("below the reserve".to_owned()));
        }
        let volume = bench.mounted("a");
        // A retry may follow at once, because the thread of the call before has ended.
        const RETRIES: usize = 500;
        for _ in 0..RETRIES {
            let refused = bench.quiesced::<()>(&[volume.target()], PATIENCE, not_copied);
            assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
        }
        assert_eq!(bench.did("freeze"), 0);
        // Half of a failed write may be on disk.
        let calls: &[&str] = if fail_write {
            &["write 1", "clear 1"]
        } else {
            &[]
        };
        assert_eq!(bench.notes.calls(), calls.repeat(RETRIES));
    }
}

#[test]
fn a_freeze_of_another_process_is_left_alone() {
    let bench = Bench::new();
    let volumes = [bench.mounted("a"), bench.mounted("b")];
    bench.freeze(&volumes[0]);
    let targets: Vec<FreezeTarget> = volumes.iter().map(Volume::target).collect();
    bench
        .quiesced(&targets, PATIENCE, |_| {
            assert!(volumes.iter().all(|v| bench.frozen(v)));
            // A crash at this point must not thaw the first filesystem.
            assert_eq!(bench.notes.calls(), ["write 2", "clear 1"]);
            Ok(())
        })
        .unwrap();
    assert!(bench.frozen(&volumes[0]) && !bench.frozen(&volumes[1]));
    let calls = bench.notes.calls();
    assert_eq!(calls, ["write 2", "clear 1", "write 1", "clear 2"]);
}

#[test]
fn a_foreign_freeze_that_ends_too_early_spoils_the_copy() {
    let bench = Bench::new();
    let volume = bench.mounted("a");
    bench.freeze(&volume);
    let spoilt = bench.quiesced(&[volume.target()], PATIENCE, |still| {
        assert!(still.until.is_none(), "not ours to limit");
        bench.thaw(&volume);
        Ok(())
    });
    cannot_freeze(spoilt, "another process had frozen");
    assert!(!bench.frozen(&volume), "the question is not left frozen");
    assert_eq!(bench.notes.calls().last().unwrap(), "clear 1");
}

#[test]
fn a_hanging_freeze_is_given_up_and_thaws_itself() {
    at_a_limit(|limit| is_given_up_and_thaws_itself(limit / 20));
}

/// False if the freeze had not begun when it was given up.
fn is_given_up_and_thaws_itself(limit: Duration) -> bool {
    let bench = Bench::new();
    let volume = bench.mounted("a");
    let (end_hang, hang_ends) = mpsc::channel();
    let (begin, has_begun) = mpsc::channel();
    let mut hang = Some(hang_ends);
    bench.model.hook("freeze", move |_| {
        let _ = begin.send(());
        if let Some(hang_ends) = hang.take() {
            let _ = hang_ends.recv_timeout(PATIENCE);
        }
        Ok(())
    });
    let given_up = bench.quiesced::<()>(&[volume.target()], limit, not_copied);
    if has_begun.try_recv().is_err() {
        return false;
    }
    cannot_freeze(given_up, "--max-freeze");
    // The intent stays for recovery.
    assert_eq!(bench.notes.calls(), ["write 1"]);

    let again = bench.quiesced::<()>(&[volume.target()], limit, not_copied);
    cannot_freeze(again, "hangs in the kernel");
    end_hang
        .send(())
        .expect("the freeze still hangs: no caller waited for its end");

    // Retry until the late freeze has returned and was thawed.
    let ended = Instant::now();
    let targets = [volume.target()];
    while bench.quiesced(&targets, PATIENCE, |_| Ok(())).is_err() {
        assert!(ended.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!((bench.did("freeze"), bench.did("thaw")), (2, 2));
    assert!(!bench.frozen(&volume));
    true
}

#[test]
fn the_limit_thaws_under_a_copy_that_does_not_end() {
    at_a_limit(|limit| {
        let (bench, copies) = (Bench::new(), Cell::new(false));
        let volume = bench.mounted("a");
        let late = bench.quiesced(&[volume.target()], limit, |still| {
            copies.set(true);
            let began = Instant::now();
            while bench.frozen(&volume) {
                assert!(began.elapsed() < PATIENCE, "thawed at the limit");
                std::thread::sleep(Duration::from_millis(20));
            }
            assert!(still.stop());
            Ok("a copy of more than one moment")
        });
        if copies.get() {
            cannot_freeze(late, "--max-freeze");
            assert_eq!(bench.notes.calls(), ["write 1", "clear 1"]);
        }
        copies.get()
    });
}

#[test]
fn a_thaw_that_fails_is_an_error_and_made_up_for() {
    let bench = Bench::new();
    let volume = bench.mounted("a");
    bench.model.fail("thaw", 1, libc::EIO);
    let failed = bench.quiesced(&[volume.target()], PATIENCE, |_| Ok(()));
    assert!(matches!(failed, Err(Error::Kernel(_))));
    assert!(bench.frozen(&volume));
    assert_eq!(bench.notes.calls(), ["write 1"], "the intent stays");

    let mut target = volume.target();
    target.freeze_intent = true;
    bench.quiesced(&[target], PATIENCE, |_| Ok(())).unwrap();
    assert!(!bench.frozen(&volume));
    assert_eq!(bench.notes.calls().last().unwrap(), "clear 1");
}

#[test]
fn a_raw_device_is_flushed_and_only_cloned() {
    let bench = Bench::new();
    let volume = bench.attached("a");
    let mut target = volume.target();
    target.raw_staged = true;
    let copied = bench.quiesced(&[target], PATIENCE, |still| bench.copy(still, &volume));
    cannot_freeze(copied, "raw block device");
    assert_eq!(bench.did("loop.flush"), 1);
    assert!(bench.notes.calls().is_empty());

    let other = bench.at_rest("b");
    let group = bench.quiesced::<()>(&[target, other.target()], PATIENCE, not_copied);
    cannot_freeze(group, "snapshot it by itself");
}

#[test]
fn a_hidden_filesystem_is_not_mistaken_for_the_one_on_top() {
    let bench = Bench::new();
    let (below, above) = (bench.mounted("a"), bench.mounted("b"));
    bench.kernel.unmount(&above.at).unwrap();
    bench.mount(&above, &below.at);
    let hidden = bench.quiesced::<()>(&[below.target()], PATIENCE, not_copied);
    cannot_freeze(hidden, "can be reached");
    bench
        .quiesced(&[above.target()], PATIENCE, |_| {
            assert!(bench.frozen(&above) && !bench.frozen(&below));
            Ok(())
        })
        .unwrap();
}

/// On a pool with reflinks, a copy of a device in use needs no freeze, so it would not fail.
#[test]
fn a_device_whose_filesystem_does_not_answer_is_not_copied() {
    let bench = Bench::new();
    let (mut volume, rest) = (bench.at_rest("a"), bench.attached("rest"));
    volume.file.set_len(FsType::Btrfs.minimum_bytes()).unwrap();
    volume.device = Some(attach(&*bench.kernel, &volume.file, false));
    make_fs(&*bench.kernel, volume.device(), FsType::Btrfs);
    mount_fs(&*bench.kernel, volume.device(), &volume.at, FsType::Btrfs);
    bench.model.set_unasked(true);
    let refused = bench.quiesced::<()>(&[volume.target()], PATIENCE, not_copied);
    match refused {
        Err(Error::Kernel(kernel::Error::UnknownMount { .. })) => {}
        other => panic!("{other:?}"),
    }
    // This one is unused, so it is not mounted.
    bench
        .quiesced(&[rest.target()], PATIENCE, |_| Ok(()))
        .unwrap();
    bench.model.set_unasked(false);
    bench
        .quiesced(&[volume.target()], PATIENCE, |_| {
            assert!(bench.frozen(&volume));
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_volume_without_a_filesystem_is_not_left_frozen() {
    let bench = Bench::new();
    let leftover = |v: &Volume| thaw_leftover(&*bench.kernel, v.id, v.image).unwrap();

    assert_eq!(leftover(&bench.at_rest("rest")), LeftoverFreeze::Nothing);
    assert_eq!(leftover(&bench.attached("blank")), LeftoverFreeze::Nothing);
}

#[test]
fn a_leftover_that_cannot_be_thawed_is_mounted_nowhere() {
    let bench = Bench::new();
    let volume = bench.mounted("a");
    bench.freeze(&volume);
    bench.kernel.unmount(&volume.at).unwrap();
    bench.model.fail("thaw", 1, libc::EIO);
    let thaw = || thaw_leftover(&*bench.kernel, volume.id, volume.image);
    thaw().unwrap_err();
    assert!(bench.frozen(&volume));
    assert!(bench.kernel.mounts().unwrap().at(&volume.at).is_none());
    assert_eq!(thaw().unwrap(), LeftoverFreeze::Unmounted);
    assert!(!bench.frozen(&volume));
}

#[test]
fn a_copy_stopped_at_the_limit_says_what_to_do() {
    at_a_limit(|limit| {
        let (bench, copies) = (Bench::new(), Cell::new(false));
        let volume = bench.mounted("a");
        std::os::unix::fs::FileExt::write_all_at(&volume.file, &[1; 4096], 65536).unwrap();
        let stopped = bench.quiesced(&[volume.target()], limit, |still| {
            copies.set(true);
            std::thread::sleep(limit + limit / 10);
            bench.copy(still, &volume)
        });
        if copies.get() {
            cannot_freeze(stopped, "pool with reflinks");
        }
        copies.get()
    });
}
