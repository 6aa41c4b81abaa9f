//! Files that stand between an image and its loop device, with the bytes of the image: those of fault
//! disks. To all that looks for the devices of an image, a device over such a file is over the image.
//!
//! The caller names both files by device and inode, which a user of a loop device can't forge. They
//! are kept for the whole process: each look at loop devices needs them.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::FileId;

static STAND_INS: Mutex<StandIns> = Mutex::new(StandIns {
    images: BTreeMap::new(),
    changes: 0,
});

/// The files that stand in for images.
struct StandIns {
    images: BTreeMap<FileId, FileId>,
    /// Grows with each change, after which the known loop devices are read again.
    changes: u64,
}

/// From now on, a loop device over this file counts as one over this image.
pub fn stand_in(file: FileId, image: FileId) {
    let mut all = STAND_INS.lock();
    if all.images.insert(file, image) != Some(image) {
        all.changes += 1;
    }
}

/// Forgets a file that no loop device is attached to any more.
pub fn forget_stand_in(file: FileId) {
    let mut all = STAND_INS.lock();
    if all.images.remove(&file).is_some() {
        all.changes += 1;
    }
}

/// The image that a file stands in for, or else the file itself.
pub fn image_of(file: FileId) -> FileId {
    STAND_INS.lock().images.get(&file).copied().unwrap_or(file)
}

/// How often the files that stand in for others have changed.
pub(crate) fn changes() -> u64 {
    STAND_INS.lock().changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_stands_in_for_an_image_until_it_is_forgotten() {
        // No file has this device number.
        let [file, image] = [1, 2].map(|ino| FileId { dev: u64::MAX, ino });
        assert_eq!(image_of(file), file);
        let before = changes();
        stand_in(file, image);
        assert_eq!([file, image].map(image_of), [image, image]);
        assert!(changes() > before);
        forget_stand_in(file);
        assert_eq!(image_of(file), file);
    }
}
