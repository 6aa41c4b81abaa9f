//! The blocks that files share after clones.
//!
//! A clone of the model copies bytes, because the files are the machine's own. So the model itself
//! notes what they would share on a filesystem with reflinks: a clone has all blocks of its source,
//! and a block that is written to becomes the file's own. Users write to the first block of an image
//! alone, so a file has two parts here: the first block and the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use hostloop_kernel::file::{data_bytes, name_of};
use hostloop_kernel::{BLOCK_SIZE, Error, FileId, Result, file_id};
use parking_lot::Mutex;

/// What the files of a machine share. A clone of this is the same one.
#[derive(Clone, Debug, Default)]
pub struct SharedBlocks(Arc<Mutex<Sharers>>);

#[derive(Debug, Default)]
struct Sharers {
    /// The files that were cloned, and the clones.
    files: BTreeMap<FileId, Sharer>,
    /// The last place that was given to a part of a file.
    last: u64,
}

/// A file that shares blocks, or has shared some.
#[derive(Debug)]
struct Sharer {
    /// As long as it is open, no other file gets its identity.
    file: File,
    places: Places,
}

/// Where the parts of a file are. Files with a part at one place share it.
#[derive(Clone, Copy, Debug)]
struct Places {
    first: u64,
    rest: u64,
}

impl Sharers {
    fn new_place(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn new_places(&mut self) -> Places {
        Places {
            first: self.new_place(),
            rest: self.new_place(),
        }
    }

    /// A file without a name is gone.
    fn forget_removed(&mut self) {
        self.files.retain(|_, sharer| {
            let found = sharer.file.metadata();
            found.is_ok_and(|found| found.nlink() > 0)
        });
    }

    /// Changes the places of a file that shares blocks.
    fn change(&mut self, file: &File, change: fn(&mut Places, Places)) {
        let Ok(id) = file_id(file) else { return };
        let new = self.new_places();
        if let Some(sharer) = self.files.get_mut(&id) {
            change(&mut sharer.places, new);
        }
    }
}

impl Sharer {
    fn new(file: &File, places: Places) -> Result<Sharer> {
        let kept = file.try_clone();
        Ok(Sharer {
            file: kept.map_err(|e| Error::io("dup", name_of(file), e))?,
            places,
        })
    }

    /// The places of its parts, and the bytes of data that these have.
    fn parts(&self) -> Result<[(u64, u64); 2]> {
        let all = data_bytes(&self.file)?;
        let first = all.min(BLOCK_SIZE.into());
        let Places { first: at, rest } = self.places;
        Ok([(at, first), (rest, all - first)])
    }
}

impl SharedBlocks {
    /// A file has become a clone of another one.
    pub(super) fn share(&self, from: &File, to: &File) -> Result<()> {
        let (source, clone) = (file_id(from)?, file_id(to)?);
        let mut sharers = self.0.lock();
        sharers.forget_removed();
        let known = sharers.files.get(&source).map(|sharer| sharer.places);
        let places = known.unwrap_or_else(|| sharers.new_places());
        for (id, file) in [(source, from), (clone, to)] {
            sharers.files.insert(id, Sharer::new(file, places)?);
        }
        Ok(())
    }

    /// The first block of a file was written to.
    pub(super) fn first_is_written(&self, file: &File) {
        let mut sharers = self.0.lock();
        sharers.change(file, |places, new| places.first = new.first);
    }

    /// All blocks of a file were written to.
    pub(super) fn all_are_written(&self, file: &File) {
        self.0.lock().change(file, |places, new| *places = new);
    }

    /// The bytes of one file in blocks that it shares with another one.
    pub(super) fn common_bytes(&self, base: &File, target: &File) -> Result<u64> {
        let ids = [file_id(base)?, file_id(target)?];
        let sharers = self.0.lock();
        let [Some(base), Some(target)] = ids.map(|id| sharers.files.get(&id)) else {
            return Ok(0);
        };
        let parts = base.parts()?.into_iter().zip(target.parts()?);
        let common = parts.filter(|((base, _), (target, _))| base == target);
        Ok(common
            .map(|((_, base), (_, target))| base.min(target))
            .sum())
    }

    /// The bytes of a file in blocks that others share.
    pub(super) fn shared_bytes(&self, file: &File) -> Result<u64> {
        let id = file_id(file)?;
        let mut sharers = self.0.lock();
        sharers.forget_removed();
        let Some(sharer) = sharers.files.get(&id) else {
            return Ok(0);
        };
        let others = sharers.files.iter().filter(|(other, _)| **other != id);
        let places = others.flat_map(|(_, other)| [other.places.first, other.places.rest]);
        let places: BTreeSet<u64> = places.collect();
        let shared = sharer.parts()?.into_iter();
        let shared = shared.filter(|(place, _)| places.contains(place));
        Ok(shared.map(|(_, bytes)| bytes).sum())
    }

    /// True if no file was cloned.
    pub fn is_empty(&self) -> bool {
        self.0.lock().files.is_empty()
    }

    /// The bytes that sharing saves these files on their disk: what several of them have is there
    /// once.
    pub fn saved_bytes(&self, files: &BTreeSet<FileId>) -> u64 {
        let sharers = self.0.lock();
        let (mut all, mut on_disk) = (0, BTreeMap::new());
        for sharer in files.iter().filter_map(|id| sharers.files.get(id)) {
            // What can't be read may share nothing.
            for (place, bytes) in sharer.parts().into_iter().flatten() {
                let most = on_disk.entry(place).or_insert(0_u64);
                *most = (*most).max(bytes);
                all += bytes;
            }
        }
        all - on_disk.into_values().sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    use super::*;

    const BLOCK: u64 = BLOCK_SIZE as u64;

    /// A file with so many blocks of data.
    fn file(path: &Path, blocks: u64) -> File {
        let options = &mut File::options();
        let file = options.create_new(true).read(true).write(true).open(path);
        let file = file.expect("a file");
        let bytes = vec![1; usize::try_from(blocks * BLOCK).expect("few bytes")];
        file.write_all_at(&bytes, 0).expect("a write");
        file
    }

    fn saved(shared: &SharedBlocks, files: &[&File]) -> u64 {
        let files = files.iter().map(|file| file_id(file).expect("an identity"));
        shared.saved_bytes(&files.collect()) / BLOCK
    }

    #[test]
    fn a_block_is_shared_until_it_is_written_to() {
        let dir = tempfile::tempdir().expect("a directory");
        let [volume, first, second] =
            ["volume", "first", "second"].map(|name| file(&dir.path().join(name), 4));
        let shared = SharedBlocks::default();
        let common = |a: &File, b: &File| shared.common_bytes(a, b).expect("bytes") / BLOCK;
        let of_others = |file: &File| shared.shared_bytes(file).expect("bytes") / BLOCK;
        assert!(shared.is_empty());
        assert_eq!((common(&volume, &first), of_others(&volume)), (0, 0));
        shared.share(&volume, &first).expect("a clone");
        assert!(!shared.is_empty());
        assert_eq!((common(&volume, &first), of_others(&volume)), (4, 4));
        shared.first_is_written(&volume);
        assert_eq!((common(&volume, &first), of_others(&volume)), (3, 3));
        shared.share(&volume, &second).expect("a clone");
        assert_eq!((common(&volume, &second), common(&first, &second)), (4, 3));
        // Two first blocks, and the rest once.
        let all = [&volume, &first, &second];
        assert_eq!(saved(&shared, &all), 12 - 5);
        assert_eq!(saved(&shared, &all[1..]), 8 - 5);
        shared.all_are_written(&volume);
        assert_eq!((common(&volume, &second), of_others(&volume)), (0, 0));
        assert_eq!((common(&first, &second), saved(&shared, &all)), (3, 3));
        std::fs::remove_file(dir.path().join("second")).expect("a removal");
        assert_eq!(of_others(&first), 0);
    }

    #[test]
    fn what_was_never_cloned_is_not_noted() {
        let dir = tempfile::tempdir().expect("a directory");
        let [one, other] = ["one", "other"].map(|name| file(&dir.path().join(name), 2));
        let shared = SharedBlocks::default();
        shared.first_is_written(&one);
        shared.all_are_written(&one);
        assert!(shared.is_empty());
        assert_eq!(saved(&shared, &[&one, &other]), 0);
    }
}
