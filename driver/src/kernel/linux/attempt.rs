//! Threads that attach files at the same time take different free loop devices.

use std::collections::BTreeSet;

use parking_lot::Mutex;

/// The exclusive right among this process's threads to attach a file at this minor, until it is
/// dropped. The kernel offers the same free device to all of them.
#[derive(Debug)]
pub(super) struct Attempt<'a> {
    all: &'a Mutex<BTreeSet<u32>>,
    pub(super) minor: u32,
}

impl Attempt<'_> {
    /// `None` if another thread attaches a file there.
    pub(super) fn begin(all: &Mutex<BTreeSet<u32>>, minor: u32) -> Option<Attempt<'_>> {
        // An attempt that does not exist must not be dropped.
        all.lock().insert(minor).then(|| Attempt { all, minor })
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.all.lock().remove(&self.minor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_attaches_at_a_minor() {
        let all = Mutex::default();
        let first = Attempt::begin(&all, 5).unwrap();
        for _ in 0..2 {
            assert!(Attempt::begin(&all, 5).is_none());
        }
        assert_eq!(Attempt::begin(&all, 6).unwrap().minor, 6);
        drop(first);
        assert!(Attempt::begin(&all, 5).is_some());
        assert_eq!(all.into_inner(), BTreeSet::new());
    }
}
