//! The kernel model with a gate before every filesystem mount and every usage query of a mounted
//! filesystem. A test can then inspect the server while a call is under way.

use std::fs::File;
use std::path::Path;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use hostloop_driver::kernel::fake::Model;
use hostloop_driver::kernel::*;

use crate::testkit::TestKernel;

#[derive(Debug, Default)]
struct Passage {
    /// The gate is closed for paths that contain this text.
    closed: Option<String>,
    /// Calls that came to the gate.
    came: usize,
}

/// The kernel, and its gate.
#[derive(Default)]
pub(crate) struct Gated {
    pub(crate) model: Model,
    passage: Mutex<Passage>,
    changed: Condvar,
}

impl TestKernel for Gated {
    fn get() -> Gated {
        Gated::default()
    }
}

impl Gated {
    /// From now on, all calls wait at the gate.
    pub(crate) fn close(&self) {
        self.close_for("");
    }

    /// From now on, calls with this text in their path wait at the gate.
    pub(crate) fn close_for(&self, word: &str) {
        self.passage.lock().unwrap().closed = Some(word.to_owned());
    }

    /// Opens the gate.
    pub(crate) fn open(&self) {
        self.passage.lock().unwrap().closed = None;
        self.changed.notify_all();
    }

    /// Number of calls that have reached the gate so far.
    pub(crate) fn tried(&self) -> usize {
        self.passage.lock().unwrap().came
    }

    /// Waits until this many calls have reached the gate.
    pub(crate) fn wait_for(&self, tried: usize) {
        let passage = self.passage.lock().unwrap();
        let limit = Duration::from_secs(20);
        let few = |p: &mut Passage| p.came < tried;
        let (passage, waited) = self.changed.wait_timeout_while(passage, limit, few).unwrap();
        assert!(!waited.timed_out(), "{} tried, not {tried}", passage.came);
    }

    fn pass(&self, path: &Path) {
        let path = path.to_str().unwrap();
        let mut passage = self.passage.lock().unwrap();
        passage.came += 1;
        self.changed.notify_all();
        let shut = |p: &mut Passage| p.closed.as_ref().is_some_and(|word| path.contains(word));
        drop(self.changed.wait_while(passage, shut).unwrap());
    }
}

macro_rules! as_the_model_does {
    ($(fn $name:ident(&self $(, $arg:ident: $type:ty)*) -> $answer:ty;)+) => {
        $(fn $name(&self $(, $arg: $type)*) -> $answer {
            self.model.$name($($arg),*)
        })+
    };
}

impl Kernel for Gated {
    fn mount(&self, spec: &MountSpec<'_>) -> Result<()> {
        self.pass(spec.target);
        self.model.mount(spec)
    }

    fn usage(&self, at: &Path) -> Result<FsUsage> {
        self.pass(at);
        self.model.usage(at)
    }

    as_the_model_does! {
        fn loop_attach(&self, spec: &LoopSpec<'_>) -> Result<LoopDevice>;
        fn loops(&self) -> Result<Vec<LoopInfo>>;
        fn loop_info(&self, minor: u32) -> Result<Option<LoopInfo>>;
        fn loop_open(&self, minor: u32, backing: FileId) -> Result<LoopDevice>;
        fn loop_detach(&self, minor: u32, backing: FileId) -> Result<Detached>;
        fn loop_detach_silent(&self, minor: u32, backing_path: &str) -> Result<Detached>;
        fn loop_grow(&self, device: &LoopDevice) -> Result<()>;
        fn loop_set_direct_io(&self, device: &LoopDevice, on: bool) -> Result<bool>;
        fn loop_set_read_ahead(&self, device: &LoopDevice, kib: u32) -> Result<()>;
        fn loop_flush(&self, device: &LoopDevice) -> Result<()>;
        fn mounts(&self) -> Result<MountTable>;
        fn bind(&self, source: &Path, target: &Path, flags: BindFlags) -> Result<()>;
        fn remount_discard(&self, target: &Path, fs: FsType, on: bool) -> Result<()>;
        fn unmount(&self, target: &Path) -> Result<()>;
        fn probe(&self, device: &Path) -> Result<Probe>;
        fn mkfs(&self, spec: &MkfsSpec<'_>) -> Result<()>;
        fn check(&self, device: &Path, fs: FsType) -> Result<()>;
        fn grow(&self, device: &Path, mounted_at: &Path, fs: FsType) -> Result<()>;
        fn fs_size(&self, mounted_at: &Path, device: &Path, fs: FsType) -> Result<u64>;
        fn freeze(&self, on: &File) -> Result<Freeze>;
        fn thaw(&self, on: &File) -> Result<()>;
        fn fs_errors(&self, mounted_at: &Path, minor: u32, fs: FsType) -> Result<Option<String>>;
        fn filesystems(&self) -> Vec<(FsType, std::result::Result<(), String>)>;
    }
}
