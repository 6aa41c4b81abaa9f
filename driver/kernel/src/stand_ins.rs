//! Files that stand between an image and its loop device, with the bytes of the image: those of fault
//! disks. To all that looks for the devices of an image, a device over such a file is over the image.
//!
//! The caller names both files by device and inode, which a user of a loop device can't forge. They
//! are kept for the whole process: each look at loop devices needs them.

use std::collections::{BTreeMap, VecDeque};

use parking_lot::Mutex;

use crate::FileId;

/// The most changes that a look at loop devices can follow. After more, it reads all devices again.
const MOST_CHANGES: usize = 256;

static STAND_INS: Mutex<StandIns> = Mutex::new(StandIns {
    images: BTreeMap::new(),
    changes: 0,
    former: VecDeque::new(),
});

/// The files that stand in for images.
struct StandIns {
    images: BTreeMap<FileId, FileId>,
    /// Grows with each change, after which some of the known loop devices are read again.
    changes: u64,
    /// What those devices counted as over until then, for the last changes, the newest last.
    former: VecDeque<FileId>,
}

impl StandIns {
    /// Notes that devices that count as over this file until now may count as over another one.
    fn change(&mut self, former: FileId) {
        self.changes += 1;
        if self.former.len() == MOST_CHANGES {
            self.former.pop_front();
        }
        self.former.push_back(former);
    }
}

/// From now on, a loop device over this file counts as one over this image.
pub fn stand_in(file: FileId, image: FileId) {
    let mut all = STAND_INS.lock();
    let before = all.images.insert(file, image);
    if before != Some(image) {
        all.change(before.unwrap_or(file));
    }
}

/// Forgets a file that no loop device is attached to any more.
pub fn forget_stand_in(file: FileId) {
    let mut all = STAND_INS.lock();
    if let Some(image) = all.images.remove(&file) {
        all.change(image);
    }
}

/// Forgets the files that stand in for an image, which no loop device is attached to: not to the image,
/// and to none of them.
pub fn forget_stand_ins_of(image: FileId) {
    let mut all = STAND_INS.lock();
    let files = all.images.iter().filter(|(_, of)| **of == image);
    let files: Vec<FileId> = files.map(|(file, _)| *file).collect();
    for file in files {
        all.images.remove(&file);
        all.change(image);
    }
}

/// The image that a file stands in for, or else the file itself.
pub fn image_of(file: FileId) -> FileId {
    STAND_INS.lock().images.get(&file).copied().unwrap_or(file)
}

/// How often the files that stand in for others have changed, and what the devices of the changes after
/// this one counted as over before. `None` for too many changes.
pub(crate) fn changes_after(seen: u64) -> (u64, Option<Vec<FileId>>) {
    let all = STAND_INS.lock();
    let count = usize::try_from(all.changes.saturating_sub(seen)).unwrap_or(usize::MAX);
    let first = all.former.len().checked_sub(count);
    let former = first.map(|first| all.former.range(first..).copied().collect());
    (all.changes, former)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_stands_in_for_an_image_until_it_is_forgotten() {
        // No file has this device number.
        let [file, image] = [1, 2].map(|ino| FileId { dev: u64::MAX, ino });
        assert_eq!(image_of(file), file);
        let (before, _) = changes_after(0);
        stand_in(file, image);
        stand_in(file, image);
        assert_eq!([file, image].map(image_of), [image, image]);
        assert_eq!(changes_after(before), (before + 1, Some(vec![file])));
        forget_stand_in(file);
        forget_stand_in(file);
        assert_eq!(image_of(file), file);
        assert_eq!(changes_after(before), (before + 2, Some(vec![file, image])));
        assert_eq!(changes_after(before + 2), (before + 2, Some(vec![])));

        for ino in 0..300 {
            stand_in(FileId { ino, ..file }, image);
        }
        assert_eq!(changes_after(before + 2), (before + 302, None));
        let last = FileId { ino: 299, ..file };
        let other = FileId { ino: 301, ..file };
        stand_in(last, other);
        forget_stand_ins_of(image);
        assert_eq!(image_of(file), file);
        assert_eq!(image_of(last), other);
        forget_stand_ins_of(other);
        assert_eq!(image_of(last), last);
        let (now, _) = changes_after(before);
        forget_stand_ins_of(other);
        assert_eq!(changes_after(now), (now, Some(vec![])));
    }
}
