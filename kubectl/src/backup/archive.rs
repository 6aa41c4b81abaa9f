//! A directory with the backups of a volume: a manifest, and a file of data for each backup.
//!
//! A file of data is a row of ranges: offset and length in eight bytes each, the highest first, then
//! the bytes. An empty range ends it. Files appear by a rename, the manifest last: a backup that is cut
//! short leaves the directory as it was.
//!
//! Files are for their owner alone, as they have the volume's data. A directory may come from others, so
//! a manifest names files of its directory alone, and nothing is written through a link.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use hostloop_report::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::error::ArchiveError;
use super::ranges::Range;
use crate::platform;

/// The file with the manifest.
const MANIFEST: &str = "backup.json";
/// How the name of a file of data ends. It begins with a number.
const DATA: &str = ".data";
/// The version of manifest and data.
const VERSION: u32 = 1;
/// The buffer of a file.
const BUFFER: usize = 1 << 20;

/// The volume that a directory has backups of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct VolumeInfo {
    pub(super) driver: String,
    /// Its handle, which no other volume ever has.
    pub(super) handle: String,
    /// The namespace and the name of its claim.
    pub(super) claim: String,
    /// `Block` or `Filesystem`.
    pub(super) mode: String,
    pub(super) storage_class: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BackupInfo {
    /// The file of data in the directory.
    pub(super) file: String,
    /// The checksum of that file.
    pub(super) sha256: String,
    /// The size of the volume.
    pub(super) size: u64,
    /// The bytes of the volume in the file.
    pub(super) bytes: u64,
    /// The handle of the snapshot.
    pub(super) snapshot: String,
    /// The handle of the snapshot that the data changes; a full backup has none.
    pub(super) base: Option<String>,
    /// The namespace of the VolumeSnapshot.
    pub(super) namespace: String,
    pub(super) volume_snapshot: String,
    /// In seconds since 1970.
    pub(super) taken: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    version: u32,
    volume: VolumeInfo,
    /// In the order in which they were made.
    backups: Vec<BackupInfo>,
}

/// Only the version, which is read first.
#[derive(Deserialize)]
struct AnyManifest {
    version: u32,
}

/// A directory with backups, or for some.
#[derive(Clone, Debug)]
pub(super) struct Archive {
    dir: PathBuf,
    manifest: Option<Manifest>,
}

/// Keeps other backups out of a directory until it is dropped.
#[derive(Debug)]
pub(super) struct ArchiveLock {
    dir: Option<File>,
}

impl Drop for ArchiveLock {
    /// To close the file is not enough: a child of this process has a copy of it until its exec.
    fn drop(&mut self) {
        if let Some(dir) = &self.dir {
            let _unlocked = dir.unlock();
        }
    }
}

impl Archive {
    /// Makes the directory, and locks it. Two backups at a time would write one file of data, and the
    /// manifest of one would name the data of the other.
    pub(super) fn lock(dir: &Path) -> Result<ArchiveLock, ArchiveError> {
        make_dir(dir)?;
        match platform::lock_dir(dir) {
            Ok(locked) => Ok(ArchiveLock { dir: locked }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(ArchiveError::Locked(dir.to_owned()))
            }
            Err(error) => Err(ArchiveError::io(dir)(error)),
        }
    }

    /// Reads the manifest. A directory without one is empty.
    pub(super) fn open(dir: &Path) -> Result<Archive, ArchiveError> {
        let path = dir.join(MANIFEST);
        let manifest = match fs::read(&path) {
            Ok(text) => Some(parse(&path, &text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(ArchiveError::io(path)(error)),
        };
        Ok(Archive {
            dir: dir.to_owned(),
            manifest,
        })
    }

    /// Fails if the backups are of another volume.
    pub(super) fn check_volume(&self, volume: &VolumeInfo) -> Result<(), ArchiveError> {
        let Some(manifest) = &self.manifest else {
            return Ok(());
        };
        let has = &manifest.volume;
        if has.handle == volume.handle && has.driver == volume.driver {
            return Ok(());
        }
        Err(ArchiveError::OtherVolume {
            path: self.dir.clone(),
            has: has.handle.clone(),
            requested: volume.handle.clone(),
        })
    }

    pub(super) fn last(&self) -> Option<&BackupInfo> {
        self.manifest.as_ref()?.backups.last()
    }

    /// The volume, and the backups that make up its last state: a full one, and those that follow it.
    pub(super) fn chain(&self) -> Result<(&VolumeInfo, &[BackupInfo]), ArchiveError> {
        let Some(manifest) = &self.manifest else {
            return Err(ArchiveError::Empty(self.dir.clone()));
        };
        let backups = &manifest.backups;
        let Some(full) = backups.iter().rposition(|one| one.base.is_none()) else {
            return Err(ArchiveError::Empty(self.dir.clone()));
        };
        let chain = &backups[full..];
        for pair in chain.windows(2) {
            if let [before, next] = pair
                && next.base.as_ref() != Some(&before.snapshot)
            {
                return Err(ArchiveError::Gap {
                    path: self.dir.clone(),
                    file: next.file.clone(),
                    base: next.base.clone().unwrap_or_default(),
                });
            }
        }
        Ok((&manifest.volume, chain))
    }

    /// Begins the next file of data.
    pub(super) fn begin(&self) -> Result<DataWriter, ArchiveError> {
        make_dir(&self.dir)?;
        let made = self.manifest.as_ref().map_or(0, |all| all.backups.len());
        DataWriter::create(&self.dir, format!("{:05}{DATA}", made + 1))
    }

    /// Adds a backup. Its file of data is complete.
    pub(super) fn add(
        &mut self,
        volume: &VolumeInfo,
        backup: BackupInfo,
    ) -> Result<(), ArchiveError> {
        let mut manifest = self.manifest.clone().unwrap_or_else(|| Manifest {
            version: VERSION,
            volume: volume.clone(),
            backups: Vec::new(),
        });
        // The claim may have another name since.
        manifest.volume = volume.clone();
        manifest.backups.push(backup);
        let path = self.dir.join(MANIFEST);
        let text = serde_json::to_vec_pretty(&manifest).map_err(ArchiveError::manifest(&path))?;
        let part = part_of(&self.dir, MANIFEST);
        let written = create_part(&part).and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()
        });
        written.map_err(ArchiveError::io(&part))?;
        put(&self.dir, &part, &path)?;
        self.manifest = Some(manifest);
        Ok(())
    }

    /// Fails unless the file of data is that of the backup.
    pub(super) fn verify(&self, backup: &BackupInfo) -> Result<(), ArchiveError> {
        let path = self.dir.join(&backup.file);
        let mut file = File::open(&path).map_err(ArchiveError::io(&path))?;
        let mut hash = Sha256::new();
        let mut buffer = vec![0; BUFFER];
        loop {
            let read = file.read(&mut buffer).map_err(ArchiveError::io(&path))?;
            if read == 0 {
                break;
            }
            hash.update(&buffer[..read]);
        }
        if hex(&hash.finalize()) == backup.sha256 {
            return Ok(());
        }
        Err(ArchiveError::Checksum(path))
    }

    pub(super) fn read(&self, backup: &BackupInfo) -> Result<DataReader, ArchiveError> {
        let path = self.dir.join(&backup.file);
        let file = File::open(&path).map_err(ArchiveError::io(&path))?;
        Ok(DataReader {
            path,
            file: BufReader::with_capacity(BUFFER, file),
            size: backup.size,
        })
    }
}

/// Makes a directory, unless it is there.
fn make_dir(dir: &Path) -> Result<(), ArchiveError> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    platform::private_dir(&mut builder);
    builder.create(dir).map_err(ArchiveError::io(dir))
}

fn parse(path: &Path, text: &[u8]) -> Result<Manifest, ArchiveError> {
    let any: AnyManifest = serde_json::from_slice(text).map_err(ArchiveError::manifest(path))?;
    if any.version != VERSION {
        return Err(ArchiveError::Version {
            path: path.to_owned(),
            version: any.version,
            known: VERSION,
        });
    }
    let manifest: Manifest = serde_json::from_slice(text).map_err(ArchiveError::manifest(path))?;
    let mut backups = manifest.backups.iter();
    match backups.find(|backup| !is_data_file(&backup.file)) {
        Some(backup) => Err(ArchiveError::Name {
            path: path.to_owned(),
            file: backup.file.clone(),
        }),
        None => Ok(manifest),
    }
}

/// True for the name of a file of data, which is in the directory itself.
fn is_data_file(name: &str) -> bool {
    let number = name.strip_suffix(DATA).unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// Makes a file that is being written. One that an earlier process has left goes first, and so does a link
/// of others.
fn create_part(part: &Path) -> io::Result<File> {
    match fs::remove_file(part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    platform::private_file(&mut options);
    options.open(part)
}

/// Gives a complete file its name, for good: what it replaces in the cluster is deleted then.
fn put(dir: &Path, part: &Path, path: &Path) -> Result<(), ArchiveError> {
    fs::rename(part, path).map_err(ArchiveError::io(path))?;
    platform::sync_dir(dir).map_err(ArchiveError::io(dir))
}

/// A file while it is being written.
fn part_of(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.part"))
}

/// A file of data that is being written. It is removed unless it is finished.
pub(super) struct DataWriter {
    dir: PathBuf,
    name: String,
    part: PathBuf,
    file: BufWriter<File>,
    hash: Sha256,
    bytes: u64,
}

impl DataWriter {
    fn create(dir: &Path, name: String) -> Result<DataWriter, ArchiveError> {
        let part = part_of(dir, &name);
        let file = create_part(&part).map_err(ArchiveError::io(&part))?;
        Ok(DataWriter {
            dir: dir.to_owned(),
            name,
            part,
            file: BufWriter::with_capacity(BUFFER, file),
            hash: Sha256::new(),
            bytes: 0,
        })
    }

    /// Begins a range. All its bytes follow.
    pub(super) fn begin(&mut self, range: Range) -> Result<(), ArchiveError> {
        self.put(&range.offset.to_be_bytes())?;
        self.put(&range.length.to_be_bytes())
    }

    /// Adds bytes of the range.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), ArchiveError> {
        self.bytes += bytes.len() as u64;
        self.put(bytes)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), ArchiveError> {
        self.hash.update(bytes);
        self.file
            .write_all(bytes)
            .map_err(ArchiveError::io(&self.part))
    }

    /// Ends the file, and gives it its name. Returns the name, the checksum and the bytes of the volume.
    pub(super) fn finish(mut self) -> Result<(String, String, u64), ArchiveError> {
        self.put(&[0; 16])?;
        let flushed = self.file.flush();
        let synced = flushed.and_then(|()| self.file.get_ref().sync_all());
        synced.map_err(ArchiveError::io(&self.part))?;
        let path = self.dir.join(&self.name);
        put(&self.dir, &self.part, &path)?;
        let checksum = hex(&self.hash.clone().finalize());
        Ok((self.name.clone(), checksum, self.bytes))
    }
}

impl Drop for DataWriter {
    fn drop(&mut self) {
        // A finished file has another name.
        let _gone = fs::remove_file(&self.part);
    }
}

pub(super) struct DataReader {
    path: PathBuf,
    file: BufReader<File>,
    /// The size of the volume.
    size: u64,
}

impl DataReader {
    /// The next range; `None` at the end. The bytes of the last one were read.
    pub(super) fn next_range(&mut self) -> Result<Option<Range>, ArchiveError> {
        let range = Range {
            offset: self.number()?,
            length: self.number()?,
        };
        if range.length == 0 {
            return Ok(None);
        }
        match range.offset.checked_add(range.length) {
            Some(end) if end <= self.size => Ok(Some(range)),
            _ => Err(ArchiveError::Content {
                path: self.path.clone(),
                why: "a range is behind the end of the volume: the file was changed or is damaged",
            }),
        }
    }

    /// Reads bytes of the range.
    pub(super) fn read(&mut self, bytes: &mut [u8]) -> Result<(), ArchiveError> {
        let read = self.file.read_exact(bytes);
        read.map_err(ArchiveError::io(&self.path))
    }

    fn number(&mut self) -> Result<u64, ArchiveError> {
        let mut bytes = [0; 8];
        self.read(&mut bytes)?;
        Ok(u64::from_be_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(handle: &str) -> VolumeInfo {
        VolumeInfo {
            driver: "hostloop.csi.dev".to_owned(),
            handle: handle.to_owned(),
            claim: "demo/data".to_owned(),
            mode: "Block".to_owned(),
            storage_class: None,
        }
    }

    /// Makes a backup of one range.
    fn back_up(
        archive: &mut Archive,
        snapshot: &str,
        base: Option<&str>,
        offset: u64,
        bytes: &[u8],
    ) {
        let mut data = archive.begin().unwrap();
        let length = bytes.len() as u64;
        data.begin(Range { offset, length }).unwrap();
        data.write(bytes).unwrap();
        let (file, sha256, bytes) = data.finish().unwrap();
        let backup = BackupInfo {
            file,
            sha256,
            size: 4096,
            bytes,
            snapshot: snapshot.to_owned(),
            base: base.map(str::to_owned),
            namespace: "demo".to_owned(),
            volume_snapshot: format!("of-{snapshot}"),
            taken: 0,
        };
        archive.add(&volume("v"), backup).unwrap();
    }

    /// The snapshots of the chain, or why there is none.
    fn chain(archive: &Archive) -> Result<Vec<&str>, String> {
        let (_, chain) = archive.chain().map_err(|error| error.to_string())?;
        Ok(chain.iter().map(|one| one.snapshot.as_str()).collect())
    }

    #[test]
    fn a_chain_is_a_full_backup_and_what_follows_it() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("new");
        let mut archive = Archive::open(&dir).unwrap();
        assert!(chain(&archive).unwrap_err().contains("has no backup"));
        assert_eq!(archive.last(), None);
        for (snapshot, base, expected) in [
            ("a", None, Ok(vec!["a"])),
            ("b", Some("a"), Ok(vec!["a", "b"])),
            ("c", Some("b"), Ok(vec!["a", "b", "c"])),
            ("d", None, Ok(vec!["d"])),
            ("e", Some("c"), Err("00005.data changes snapshot \"c\"")),
            ("f", None, Ok(vec!["f"])),
        ] {
            back_up(&mut archive, snapshot, base, 0, b"x");
            let again = Archive::open(&dir).unwrap();
            assert_eq!(again.manifest, archive.manifest);
            assert_eq!(
                again.last().map(|one| one.snapshot.as_str()),
                Some(snapshot)
            );
            match (chain(&again), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
                (found, _) => panic!("{snapshot}: {found:?}"),
            }
        }
        let mut names: Vec<_> = fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names[..2], ["00001.data", "00002.data"]);
        assert_eq!(names[6..], ["backup.json"]);
    }

    #[test]
    fn data_is_read_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut archive = Archive::open(dir.path()).unwrap();
        back_up(&mut archive, "a", None, 512, b"bytes");
        let backup = archive.last().unwrap();
        assert_eq!(backup.bytes, 5);
        archive.verify(backup).unwrap();
        let mut data = archive.read(backup).unwrap();
        let range = data.next_range().unwrap().unwrap();
        assert_eq!((range.offset, range.length), (512, 5));
        let mut bytes = [0; 5];
        data.read(&mut bytes).unwrap();
        assert_eq!(&bytes, b"bytes");
        assert_eq!(data.next_range().unwrap(), None);

        let small = BackupInfo {
            size: 516,
            ..backup.clone()
        };
        let refused = archive.read(&small).unwrap().next_range().unwrap_err();
        assert!(refused.to_string().contains("behind the end"), "{refused}");
    }

    #[test]
    fn a_changed_file_is_not_restored() {
        let dir = tempfile::tempdir().unwrap();
        let mut archive = Archive::open(dir.path()).unwrap();
        back_up(&mut archive, "a", None, 0, b"bytes");
        let backup = archive.last().unwrap();
        let path = dir.path().join(&backup.file);
        let right = fs::read(&path).unwrap();
        let mut flipped = right.clone();
        flipped[17] ^= 1;
        for wrong in [&flipped[..], &right[..right.len() - 1], b""] {
            fs::write(&path, wrong).unwrap();
            let refused = archive.verify(backup).unwrap_err().to_string();
            assert!(refused.contains("checksum"), "{refused}");
        }
        fs::remove_file(&path).unwrap();
        assert!(archive.verify(backup).is_err());
    }

    /// A power cut must not take the name of a backup that is said to be complete.
    #[test]
    fn names_are_written_to_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let (part, path) = (dir.path().join("a.part"), dir.path().join("a"));
        fs::write(&part, "bytes").unwrap();
        put(dir.path(), &part, &path).unwrap();
        fs::rename(&path, &part).unwrap();
        let unsynced = put(&dir.path().join("none"), &part, &path);
        assert_eq!(unsynced.is_err(), platform::DIRS_ARE_FILES);
    }

    #[test]
    fn a_backup_that_is_cut_short_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let archive = Archive::open(dir.path()).unwrap();
        let mut data = archive.begin().unwrap();
        data.write(b"bytes").unwrap();
        drop(data);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_is_of_one_volume() {
        let dir = tempfile::tempdir().unwrap();
        let mut archive = Archive::open(dir.path()).unwrap();
        archive.check_volume(&volume("w")).unwrap();
        back_up(&mut archive, "a", None, 0, b"bytes");
        archive.check_volume(&volume("v")).unwrap();
        let refused = archive.check_volume(&volume("w")).unwrap_err();
        assert!(
            refused.to_string().contains("another volume, v"),
            "{refused}"
        );
    }

    /// A manifest with a backup in this file.
    fn with_file(name: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let mut archive = Archive::open(dir.path()).unwrap();
        back_up(&mut archive, "a", None, 0, b"bytes");
        let manifest = fs::read_to_string(dir.path().join(MANIFEST)).unwrap();
        manifest.replace("00001.data", name)
    }

    /// Others may not read the data, and a link of theirs leads nowhere.
    #[test]
    fn files_are_for_their_owner_alone() {
        let outer = tempfile::tempdir().unwrap();
        let (dir, victim) = (outer.path().join("backups"), outer.path().join("victim"));
        let mut archive = Archive::open(&dir).unwrap();
        back_up(&mut archive, "a", None, 0, b"bytes");
        fs::write(&victim, "kept").unwrap();
        for name in ["00002.data.part", "backup.json.part"] {
            platform::link(&victim, &dir.join(name)).unwrap();
        }
        back_up(&mut archive, "b", Some("a"), 0, b"more");
        assert_eq!(fs::read(&victim).unwrap(), b"kept");
        for name in ["", "00001.data", "00002.data", MANIFEST] {
            assert_eq!(platform::rights_of_others(&dir.join(name)), 0, "{name}");
        }
    }

    #[test]
    fn manifests_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let [above, elsewhere, unnamed] = ["../00001.data", "/etc/passwd", ".data"].map(with_file);
        for (text, says) in [
            ("{\"version\": 2}", "use a newer program"),
            ("{\"version\": 1}", "can't be read"),
            ("{}", "can't be read"),
            ("backup", "can't be read"),
            (&*above, "not the name of a file"),
            (&*elsewhere, "not the name of a file"),
            (&*unnamed, "not the name of a file"),
        ] {
            fs::write(dir.path().join(MANIFEST), text).unwrap();
            let refused = Archive::open(dir.path()).unwrap_err().to_string();
            assert!(refused.contains(says), "{text}: {refused}");
        }
    }
}
