//! The kernel in memory: what a test asks of it, and what it has done.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hostloop_events::phase;
use hostloop_kernel::failpoint::effect;
use hostloop_kernel::{Error, FileId, FsState, FsType, FsUsage, Result, file_id};
use parking_lot::Mutex;

mod content;
mod filesystems;
mod loop_devices;
mod mounting;
mod mounts;
mod shared_blocks;
mod stamps;
mod state;

use content::Content;
pub use shared_blocks::SharedBlocks;
pub use stamps::Stamps;
use state::{Device, Slot, State, Super};

/// The lowest minor that the model assigns.
pub const FIRST_MINOR: u32 = 1_000_000;

/// Returns a filesystem's usage, given a path on it and the machine's own answer.
type Disk = Arc<dyn Fn(&Path, FsUsage) -> FsUsage + Send + Sync>;

type Hook = Arc<dyn Fn(&Path) -> Result<()> + Send + Sync>;

/// A kernel that exists only in this process, seen from one mount namespace.
#[derive(Default)]
pub struct Model {
    state: Arc<Mutex<State>>,
    script: Arc<Mutex<Script>>,
    /// The number of the mount namespace.
    namespace: u32,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").finish_non_exhaustive()
    }
}

/// The failures and hooks that a test requests, and the effects so far.
#[derive(Default)]
struct Script {
    /// The number of boots before this one.
    boots: u32,
    faults: Vec<Fault>,
    hooks: BTreeMap<&'static str, Hook>,
    effects: Vec<Effect>,
    absent: Vec<FsType>,
    withheld: bool,
    attributes_read_only: bool,
    private: bool,
    without_journal: bool,
    disk: Option<Disk>,
    /// `None` if the machine's own filesystem decides.
    reflinks: Option<bool>,
    /// The bytes that mkfs writes beside its mark.
    tables: u64,
}

struct Fault {
    op: &'static str,
    /// Number of calls that succeed before the failure.
    skip: usize,
    errno: i32,
    afterwards: bool,
}

/// An operation that was done or tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The operation's name ("mount").
    pub op: &'static str,
    /// The object of the operation.
    pub path: PathBuf,
}

impl Model {
    /// A machine with no attached devices, and no mounts except `/` and `/dev`.
    pub fn new() -> Model {
        Model::default()
    }

    /// This kernel from a new mount namespace, as in a container: it has no mounts but `/` and
    /// `/dev`. Files, devices and filesystems are the same, and so are failures, hooks and effects.
    pub fn beside(&self) -> Model {
        let mut state = self.state.lock();
        state.namespaces += 1;
        Model {
            state: self.state.clone(),
            script: self.script.clone(),
            namespace: state.namespaces,
        }
    }

    /// Ends the mounts of this namespace, as the end of its last process does. Devices stay.
    pub fn end(&self) {
        let mut state = self.state.lock();
        state.mounts.retain(|mounted| {
            mounted
                .namespace
                .is_none_or(|namespace| namespace != self.namespace)
        });
        state.settle();
    }

    /// Makes the `nth` call of `op` from now on (1 is the next) fail with this errno, before it
    /// changes anything.
    pub fn fail(&self, op: &'static str, nth: usize, errno: i32) {
        self.fault(op, nth, errno, false);
    }

    /// Like [`Model::fail`], but the operation happens before the call fails (only half of an
    /// mkfs).
    pub fn fail_afterwards(&self, op: &'static str, nth: usize, errno: i32) {
        self.fault(op, nth, errno, true);
    }

    /// Takes the journals from all filesystems, so that a power cut may halve a rename.
    pub fn lose_journal(&self) {
        self.script.lock().without_journal = true;
    }

    /// Makes this function answer for the usage of the filesystems that hold pools and images. It
    /// receives a path and the machine's own answer. It must not call the model.
    pub fn set_disk(&self, disk: impl Fn(&Path, FsUsage) -> FsUsage + Send + Sync + 'static) {
        self.script.lock().disk = Some(Arc::new(disk));
    }

    /// Lets files be cloned, or not, whatever the machine's own filesystem can do. Such a clone
    /// is a copy there: [`Model::shared_blocks`] says which blocks it would share.
    pub fn set_reflinks(&self, possible: bool) {
        self.script.lock().reflinks = Some(possible);
    }

    /// What files share after clones.
    pub fn shared_blocks(&self) -> SharedBlocks {
        self.state.lock().shared.clone()
    }

    /// Lets each mkfs write so many bytes of data from the second block on, as a real one writes
    /// the tables of its filesystem. No later write changes them.
    pub fn set_tables(&self, bytes: u64) {
        self.script.lock().tables = bytes;
    }

    fn fault(&self, op: &'static str, nth: usize, errno: i32, afterwards: bool) {
        self.script.lock().faults.push(Fault {
            op,
            skip: nth.saturating_sub(1),
            errno,
            afterwards,
        });
    }

    /// Calls `hook` with the path of the object before every call of `op`. The hook may block,
    /// panic, call the model, or return an error. A later hook for the same `op` replaces it.
    pub fn hook(&self, op: &'static str, hook: impl FnMut(&Path) -> Result<()> + Send + 'static) {
        let hook = Mutex::new(hook);
        self.shared_hook(op, move |path| hook.lock()(path));
    }

    /// Like [`Model::hook`], for a hook that may run in several calls at a time.
    pub fn shared_hook(
        &self,
        op: &'static str,
        hook: impl Fn(&Path) -> Result<()> + Send + Sync + 'static,
    ) {
        self.script.lock().hooks.insert(op, Arc::new(hook));
    }

    /// Removes all hooks and faults.
    pub fn behave(&self) {
        let mut script = self.script.lock();
        script.hooks.clear();
        script.faults.clear();
    }

    /// All operations done or tried so far, in order.
    pub fn effects(&self) -> Vec<Effect> {
        self.script.lock().effects.clone()
    }

    /// The names of [`Model::effects`] since the last call of this method.
    pub fn take_effects(&self) -> Vec<&'static str> {
        let effects = std::mem::take(&mut self.script.lock().effects);
        effects.into_iter().map(|e| e.op).collect()
    }

    /// Makes the mount at this path busy (or not): unmounting a busy mount fails with EBUSY.
    pub fn set_busy(&self, mount_point: &Path, busy: bool) {
        let mut state = self.state.lock();
        state.busy.retain(|path| path != mount_point);
        if busy {
            state.busy.push(mount_point.to_path_buf());
        }
    }

    /// Disables (or enables) direct I/O for the file with this identity, even while it is in use.
    pub fn set_direct_io(&self, backing: FileId, possible: bool) {
        let mut state = self.state.lock();
        state.buffered.retain(|id| *id != backing);
        if !possible {
            state.buffered.push(backing);
            for slot in state.loops.values_mut() {
                slot.direct_io &= slot.backing != backing;
            }
        }
    }

    /// Makes the filesystem on an attached device report these errors.
    pub fn set_fs_errors(&self, minor: u32, errors: Option<&str>) {
        self.change_super(minor, |sb| sb.errors = errors.map(str::to_owned));
    }

    /// Makes the superblock of an ext4 image say this of its last use.
    pub fn set_fs_state(&self, image: &Path, state: FsState) -> Result<()> {
        let locked = self.state.lock();
        match locked.content(image)? {
            Content::Filesystem { fs, uuid, size, .. } => {
                let FsState {
                    unreplayed,
                    needs_check,
                } = state;
                let content = Content::Filesystem {
                    fs,
                    uuid,
                    size,
                    unreplayed,
                    needs_check,
                };
                locked.set_content(image, &content)
            }
            _ => Err(Error::errno("superblock", image, libc::EINVAL)),
        }
    }

    /// Makes the filesystem on an attached device read-only, as after an error.
    pub fn turn_read_only(&self, minor: u32) {
        self.change_super(minor, |sb| sb.read_only = true);
    }

    /// Makes the filesystem of a device's backing file stop answering (or answer again). While it
    /// does not answer, the kernel does not report the backing file.
    pub fn set_silent(&self, minor: u32, silent: bool) {
        self.change_loop(minor, |slot| slot.silent = silent);
    }

    /// Makes each btrfs stop saying on which devices it is (or say so again).
    pub fn set_unasked(&self, unasked: bool) {
        self.state.lock().unasked = unasked;
    }

    /// Makes the kernel mount each btrfs from these loop devices, whichever is named. A kernel
    /// before Linux 6.7 does so with devices that it scanned before and that have the same
    /// filesystem ID. `None` ends that.
    pub fn set_scanned(&self, loops: Option<&[u32]>) {
        self.state.lock().scanned = loops.map(<[u32]>::to_vec);
    }

    /// Changes the bytes of its file that a device shows, as a process with write access can.
    pub fn tamper(&self, minor: u32, offset: u64, size_limit: u64) {
        self.change_loop(minor, |slot| {
            (slot.offset, slot.size_limit) = (offset, size_limit)
        });
    }

    /// Changes a device's label, as a process with write access can.
    pub fn relabel(&self, minor: u32, label: &str) {
        self.change_loop(minor, |slot| label.clone_into(&mut slot.label));
    }

    /// Changes a device's logical block size, as its user can (LOOP_SET_BLOCK_SIZE).
    pub fn set_block_size(&self, minor: u32, bytes: u32) {
        self.change_loop(minor, |slot| slot.block_size = bytes);
    }

    /// Replaces the file behind a read-only device, as a process with read access can
    /// (LOOP_CHANGE_FD).
    pub fn change_backing(&self, minor: u32, backing: &File) -> Result<()> {
        let file = backing.try_clone();
        let file = file.map_err(|e| Error::io("dup", "the backing file", e))?;
        let backing = file_id(&file)?;
        self.change_loop(minor, |slot| {
            (slot.backing, slot.rdev, slot.file) = (backing, 0, file)
        });
        Ok(())
    }

    fn change_loop(&self, minor: u32, change: impl FnOnce(&mut Slot)) {
        self.state.lock().loops.get_mut(&minor).map(change);
    }

    fn change_super(&self, minor: u32, change: impl FnOnce(&mut Super)) {
        let device = Device::Loop(minor);
        self.state.lock().supers.get_mut(&device).map(change);
    }

    /// Makes the tools of this filesystem unavailable.
    pub fn set_absent(&self, fs: FsType) {
        self.script.lock().absent.push(fs);
    }

    /// Takes the right to grow a mounted ext4 away (CAP_SYS_RESOURCE), or gives it back.
    pub fn withhold_growth(&self, withheld: bool) {
        self.script.lock().withheld = withheld;
    }

    /// Makes attributes of devices read-only, as in a container that may not mount a sysfs of its
    /// own (or writable again). Other than on Linux, an XFS is mounted all the same.
    pub fn set_attributes_read_only(&self, read_only: bool) {
        self.script.lock().attributes_read_only = read_only;
    }

    /// Keeps mounts to this process's own namespace, or lets them reach others.
    pub fn set_private(&self, private: bool) {
        self.script.lock().private = private;
    }

    /// The read-ahead of an attached device, in KiB.
    pub fn read_ahead_kib(&self, minor: u32) -> Option<u32> {
        let state = self.state.lock();
        state.loops.get(&minor).map(|slot| slot.read_ahead_kib)
    }

    /// True if the filesystem on a device is frozen, mounted or not.
    pub fn is_frozen(&self, minor: u32) -> bool {
        let state = self.state.lock();
        let sb = state.supers.get(&Device::Loop(minor));
        sb.is_some_and(|sb| sb.frozen)
    }

    /// Clears all devices and mounts, and what was written and not synced; the content of files
    /// stays. The boot ID is another one.
    pub fn reboot(&self) {
        self.state.lock().reboot();
        self.script.lock().boots += 1;
    }

    /// Records an effect or a query. Returns the error with which it must fail after it is done.
    fn enter(&self, op: &'static str, path: &Path, is_effect: bool) -> Result<Option<Error>> {
        if is_effect {
            self.script.lock().effects.push(Effect {
                op,
                path: path.to_path_buf(),
            });
            effect(op).map_err(|e| Error::io(op, path, e))?;
        }
        let (hook, fault) = {
            let mut script = self.script.lock();
            (script.hooks.get(op).cloned(), script.next_fault(op))
        };
        // This holds neither lock, because the hook may call the model.
        if let Some(hook) = hook {
            hook(path)?;
        }
        match fault {
            Some((errno, false)) => Err(Error::errno(op, path, errno)),
            Some((errno, true)) => Ok(Some(Error::errno(op, path, errno))),
            None => Ok(None),
        }
    }

    /// Changes the state. Detaches unused autoclear devices before and after the change.
    fn act<T>(
        &self,
        op: &'static str,
        path: &Path,
        change: impl FnOnce(&mut State) -> Result<T>,
    ) -> Result<T> {
        let work = || {
            let late = self.enter(op, path, true)?;
            let done = self.settled(change)?;
            late.map_or(Ok(done), Err)
        };
        match phase_of(op) {
            Some(name) => phase(name, work),
            None => work(),
        }
    }

    /// Reads the state.
    fn ask<T>(
        &self,
        op: &'static str,
        path: &Path,
        look: impl FnOnce(&mut State) -> Result<T>,
    ) -> Result<T> {
        let late = self.enter(op, path, false)?;
        let seen = self.settled(look)?;
        late.map_or(Ok(seen), Err)
    }

    fn settled<T>(&self, f: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let mut state = self.state.lock();
        state.namespace = self.namespace;
        state.settle();
        let answer = f(&mut state);
        state.settle();
        answer
    }
}

impl Script {
    /// The fault that is due now, as errno and whether the call fails only afterwards.
    fn next_fault(&mut self, op: &str) -> Option<(i32, bool)> {
        let mut due = None;
        self.faults.retain_mut(|fault| {
            if fault.op != op {
                return true;
            }
            if fault.skip == 0 && due.is_none() {
                due = Some((fault.errno, fault.afterwards));
                return false;
            }
            fault.skip = fault.skip.saturating_sub(1);
            true
        });
        due
    }
}

/// The step of a call that an effect is, as on the real kernel.
fn phase_of(op: &str) -> Option<&'static str> {
    Some(match op {
        "loop.attach" => "loop attach",
        "loop.detach" => "loop detach",
        "mount" => "mount",
        "bind" => "bind mount",
        "unmount" => "unmount",
        "check" | "check-whole" | "mend" => "check",
        "grow" => "grow",
        "freeze" => "freeze",
        "thaw" => "thaw",
        _ => return None,
    })
}
