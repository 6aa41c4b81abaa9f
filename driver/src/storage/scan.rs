//! Reads a pool's directory with unusable records and stray entries. It takes no lock and changes
//! nothing, so it can run while the driver has the pool open.

use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use super::capacity::{self, Image};
use super::file_names::{EntryKind, IMAGE, INCOMING, LOCK, MARK, OWNER, TRASH, kept_id};
use super::free_room::FILLER;
use super::image_stat::ImageStat;
use super::layout::open_dir;
use super::load::{self, EntryName};
use super::record_io::Record;
use super::state_until_reboot;
use super::{GroupRecord, PoolId, SnapshotRecord, VolumeRecord};
use crate::kernel::{Error, FsUsage, Kernel, Result, file};
pub use crate::record::UnusableRecord;
use rustix::fs::OFlags;

/// The flags that open a directory.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// Further files that the driver or mkfs creates in a pool's directory.
const OWN_FILES: [&str; 7] = [
    "pool.json",
    ".pool.json.new",
    OWNER,
    ".node.json.new",
    LOCK,
    FILLER,
    "lost+found",
];

/// The content of a pool's directory.
#[derive(Clone, Debug)]
pub struct Contents {
    /// The directory that holds the pool's files.
    pub root: PathBuf,
    /// The pool's identity.
    pub id: PoolId,
    /// The device number of the pool's filesystem, as `stat` returns it.
    pub device: u64,
    /// True if snapshots share extents; `None` if only a clone attempt could show it.
    pub reflinks: Option<bool>,
    /// Size and free space of the pool's filesystem.
    pub usage: FsUsage,
    pub volumes: Vec<Item<VolumeRecord>>,
    pub snapshots: Vec<Item<SnapshotRecord>>,
    pub groups: Vec<Item<GroupRecord>>,
    /// Deleted snapshots that keep their images.
    pub bases: Vec<SnapshotRecord>,
    /// Entries under `incoming/` and `trash/`, but for those in `bases`.
    pub leftovers: Vec<Leftover>,
    /// Unknown files and directories, relative to the root.
    pub unknown_files: Vec<PathBuf>,
}

/// A directory of an entry, with its record and its image.
#[derive(Clone, Debug, PartialEq)]
pub struct Item<R> {
    /// The directory's name, which is the ID.
    pub name: String,
    /// The record, or the reason why it can't be read.
    pub record: std::result::Result<R, UnusableRecord>,
    /// The image, if the directory has one.
    pub image: Option<ImageStat>,
}

/// The directory of an entry that is not in its final place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    /// Entries under construction, or left by an interrupted creation.
    Incoming,
    /// Deleted entries that are not freed yet.
    Trash,
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Area::Incoming => INCOMING,
            Area::Trash => TRASH,
        })
    }
}

/// An entry under construction, or a deleted entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// The directory that holds the entry.
    pub area: Area,
    /// The entry's name.
    pub name: String,
    /// The entry's image, if it has one.
    pub image: Option<ImageStat>,
}

impl Contents {
    /// Reads the pool in a directory. Entries that disappear meanwhile are left out.
    pub fn read(kernel: &dyn Kernel, path: &Path) -> super::Result<Contents> {
        let root = open_dir(path)?;
        let dir = root.as_fd();
        let id =
            super::open::identity::identity(dir, None)?.ok_or_else(|| super::Error::Corrupt {
                path: path.to_path_buf(),
                why: "holds no pool.json".to_owned(),
            })?;
        let stat = rustix::fs::fstat(dir).map_err(|e| Error::io("fstat", path, e.into()))?;
        let mut unknown_files = unknown_files_at_top(dir)?;
        let boot = kernel.boot_id()?;
        let volumes = items((dir, id), &boot, &mut unknown_files)?;
        let mut leftovers = leftovers(dir)?;
        let bases = take_bases(dir, &volumes, &mut leftovers)?;
        Ok(Contents {
            root: path.to_path_buf(),
            id,
            device: stat.st_dev,
            reflinks: crate::kernel::reflink_support::shares_extents(dir)?,
            usage: kernel.usage_of(dir)?,
            volumes,
            snapshots: items((dir, id), &boot, &mut unknown_files)?,
            groups: items((dir, id), &boot, &mut unknown_files)?,
            bases,
            leftovers,
            unknown_files,
        })
    }

    /// Bytes that the pool has promised: the sizes of volumes, and the bytes that snapshots held
    /// when they were taken, also deleted ones that keep their images.
    pub fn promised_bytes(&self) -> u64 {
        let volumes = self.volumes.iter().filter_map(|v| v.record.as_ref().ok());
        let snapshots = self.snapshots.iter().filter_map(|s| s.record.as_ref().ok());
        let volumes = volumes.map(|v| v.capacity_bytes);
        let snapshots = snapshots.chain(&self.bases);
        let snapshots = snapshots.map(|s| s.allocated_bytes.min(s.size_bytes));
        volumes.chain(snapshots).fold(0, u64::saturating_add)
    }

    /// Bytes that the pool's images hold at least, also those of deleted snapshots that keep them.
    /// Blocks that they may share count once.
    pub fn held_bytes(&self) -> u64 {
        let volumes = self.volumes.iter().filter_map(|volume| {
            let record = volume.record.as_ref().ok()?;
            Some(Image::of_volume(record, volume.image?.allocated))
        });
        let snapshots = self.snapshots.iter().filter_map(|snapshot| {
            let record = snapshot.record.as_ref().ok()?;
            Some(Image::of_snapshot(record, snapshot.image?.allocated))
        });
        let bases = self.bases.iter();
        let bases = bases.map(|base| Image::of_kept_base(base, base.allocated_bytes));
        let images: Vec<Image> = volumes.chain(snapshots).chain(bases).collect();
        capacity::held(&images, self.reflinks != Some(false))
    }
}

/// Lists files in the pool's directory that neither the driver nor mkfs puts there.
pub(super) fn unknown_files_at_top(dir: BorrowedFd<'_>) -> Result<Vec<PathBuf>> {
    let kinds = EntryKind::ALL.map(EntryKind::name);
    let mut names = file::list(dir)?;
    names.retain(|name| {
        let name = name.as_str();
        !OWN_FILES.contains(&name) && !kinds.contains(&name) && ![INCOMING, TRASH].contains(&name)
    });
    Ok(names.into_iter().map(PathBuf::from).collect())
}

/// Reads the entries of one kind.
fn items<R: Record>(
    pool: (BorrowedFd<'_>, PoolId),
    boot: &str,
    unknown_files: &mut Vec<PathBuf>,
) -> Result<Vec<Item<R>>> {
    let (dir, id) = pool;
    let name = R::KIND.name();
    let mut items = Vec::new();
    let Some(entries) = open_if_there(dir, name, DIRECTORY)? else {
        return Ok(items);
    };
    let mut buffer = Vec::new();
    for entry in file::list(entries.as_fd())? {
        let record = match load::entry_name::<R>(&entry, id) {
            EntryName::Here(id) => load::read::<R>(entries.as_fd(), boot, &entry, id, &mut buffer),
            EntryName::OtherPool(other) => Err(UnusableRecord::OtherPool(other)),
            EntryName::NoId => {
                unknown_files.push(Path::new(name).join(&entry));
                continue;
            }
        };
        items.extend(item(&entries, entry, record, unknown_files)?);
    }
    Ok(items)
}

/// Adds to a record what else is in its entry; `None` if it has been moved or removed meanwhile.
fn item<R: Record>(
    entries: &File,
    name: String,
    record: std::result::Result<R, UnusableRecord>,
    unknown_files: &mut Vec<PathBuf>,
) -> Result<Option<Item<R>>> {
    let (image, files) = match open_if_there(entries.as_fd(), &name, DIRECTORY) {
        Ok(Some(dir)) => (image_in(dir.as_fd())?, file::list(dir.as_fd())?),
        Ok(None) => return Ok(None),
        // Not a directory: its record is unreadable, too.
        Err(_) => (None, Vec::new()),
    };
    if open_if_there(entries.as_fd(), &name, OFlags::PATH)?.is_none() {
        return Ok(None);
    }
    let ours = [IMAGE, R::FILE, state_until_reboot::FILE, MARK];
    let temporary = ours.map(|name| format!(".{name}.new"));
    let there = Path::new(R::KIND.name()).join(&name);
    let others = files
        .into_iter()
        .filter(|file| !ours.contains(&file.as_str()) && !temporary.contains(file));
    unknown_files.extend(others.map(|file| there.join(file)));
    Ok(Some(Item {
        name,
        record,
        image,
    }))
}

/// Reads the entries under `incoming/` and `trash/`.
fn leftovers(pool: BorrowedFd<'_>) -> Result<Vec<Leftover>> {
    let mut found = Vec::new();
    for area in [Area::Incoming, Area::Trash] {
        let Some(dir) = open_if_there(pool, &area.to_string(), DIRECTORY)? else {
            continue;
        };
        for name in file::list(dir.as_fd())? {
            let entry = match open_if_there(dir.as_fd(), &name, DIRECTORY) {
                Ok(None) => continue,
                Ok(Some(entry)) => Some(entry),
                Err(_) => None,
            };
            let image = entry.map(|e| image_in(e.as_fd())).transpose()?;
            found.push(Leftover {
                area,
                name,
                image: image.flatten(),
            });
        }
    }
    Ok(found)
}

/// Moves the deleted snapshots that keep their images out of the leftovers. The next start of the
/// driver frees those that are not whole or have no volume.
fn take_bases(
    pool: BorrowedFd<'_>,
    volumes: &[Item<VolumeRecord>],
    leftovers: &mut Vec<Leftover>,
) -> Result<Vec<SnapshotRecord>> {
    let mut bases = Vec::new();
    let Some(trash) = open_if_there(pool, TRASH, DIRECTORY)? else {
        return Ok(bases);
    };
    let mut buffer = Vec::new();
    leftovers.retain(|leftover| {
        let Some(id) = kept_id(&leftover.name).filter(|_| leftover.area == Area::Trash) else {
            return true;
        };
        let stored = load::stored::<SnapshotRecord>(trash.as_fd(), &leftover.name, id, &mut buffer);
        let Some(record) = stored.ok().filter(|_| leftover.image.is_some()) else {
            return true;
        };
        let source = record.source.to_string();
        let has_volume = volumes.iter().any(|volume| volume.name == source);
        if has_volume {
            bases.push(record);
        }
        !has_volume
    });
    Ok(bases)
}

/// Opens a file beneath a directory; `None` if it does not exist.
fn open_if_there(dir: BorrowedFd<'_>, name: &str, flags: OFlags) -> Result<Option<File>> {
    match file::open_beneath(dir, Path::new(name), flags) {
        Ok(open) => Ok(Some(open)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Reads the status of the image in a directory. O_PATH avoids opening special files.
fn image_in(dir: BorrowedFd<'_>) -> Result<Option<ImageStat>> {
    match open_if_there(dir, IMAGE, OFlags::PATH)? {
        Some(open) => ImageStat::of(&open, Path::new(IMAGE)),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use hostloop_fake_kernel::Model;

    use super::*;
    use crate::storage::{About, GroupId, PoolId, VolumeId};
    use crate::testkit::Site;

    fn group(id: GroupId) -> String {
        format!(
            r#"{{"schema":1,"id":"{id}","name":"g","snapshots":[],"sources":[],
               "parameters":{{}},"created_ns":1}}"#
        )
    }

    #[test]
    fn a_pool_is_read_as_it_lies() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let pool = PoolId::generate();
        let (good, empty, broken) = (
            GroupId::generate(pool),
            GroupId::generate(pool),
            GroupId::generate(pool),
        );
        for name in ["volumes", "snapshots", "incoming/x", "trash"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        for (name, text) in [
            (
                "pool.json".to_owned(),
                format!(r#"{{"schema":1,"id":"{pool}","name":"p"}}"#),
            ),
            ("lock".to_owned(), String::new()),
            (format!("groups/{good}/group.json"), group(good)),
            (format!("groups/{good}/notes"), String::new()),
            (format!("groups/{broken}/group.json"), "{".to_owned()),
            (format!("groups/{empty}/image"), "bytes".to_owned()),
            ("groups/mine/group.json".to_owned(), String::new()),
            ("incoming/x/image".to_owned(), "by".to_owned()),
            ("trash/file".to_owned(), String::new()),
            ("README".to_owned(), String::new()),
        ] {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let contents = Contents::read(&Model::new(), root).unwrap();
        assert_eq!(contents.id, pool);
        let found: Vec<GroupId> = contents
            .groups
            .iter()
            .map(|g| g.name.parse().unwrap())
            .collect();
        let mut expected = vec![good, empty, broken];
        expected.sort_by_key(GroupId::to_string);
        assert_eq!(found, expected);
        let of = |id: GroupId| {
            contents
                .groups
                .iter()
                .find(|g| g.name == id.to_string())
                .unwrap()
        };
        assert!(of(good).record.is_ok());
        assert_eq!(of(empty).record, Err(UnusableRecord::Missing));
        assert_eq!(of(empty).image.unwrap().bytes, 5);
        assert!(matches!(of(broken).record, Err(UnusableRecord::Damaged(_))));
        let names: Vec<_> = contents
            .leftovers
            .iter()
            .map(|l| (l.area, l.name.as_str()))
            .collect();
        assert_eq!(names, [(Area::Incoming, "x"), (Area::Trash, "file")]);
        assert_eq!(contents.leftovers[0].image.unwrap().bytes, 2);
        let mut unknown_files = contents.unknown_files.clone();
        unknown_files.sort();
        let notes = Path::new("groups").join(good.to_string()).join("notes");
        let mut expected = vec![PathBuf::from("README"), PathBuf::from("groups/mine"), notes];
        expected.sort();
        assert_eq!(unknown_files, expected);
    }

    #[test]
    fn the_driver_and_fsck_read_a_record_alike() {
        let mut site = Site::fake(&["a"]);
        let made = site.make("one");
        let path = site.path(format!("volumes/{}/volume.json", made.id));
        let sound = std::fs::read_to_string(&path).unwrap();
        let other = VolumeId::generate(made.id.pool()).to_string();
        const SCHEMA: &str = "\"schema\": 1";
        for text in [
            sound.clone(),
            String::new(),
            sound.replace(SCHEMA, "\"schema\": 0"),
            sound.replace(SCHEMA, "\"schema\": 2"),
            sound.replace(SCHEMA, "\"schema\": 1, \"novelty\": 1"),
            sound.replace(&made.id.to_string(), &other),
        ] {
            std::fs::write(&path, &text).unwrap();
            site.open();
            let contents = Contents::read(&*site.kernel, site.pool().root()).unwrap();
            let why = contents.volumes[0].record.as_ref().err();
            let fsck = why.map(|why| format!("its record {why}; {}", why.advice()));
            let found = site.pools().noted_problems().into_iter();
            let driver: Vec<String> = found.map(|noted| noted.problem.message()).collect();
            assert_eq!(driver, Vec::from_iter(fsck), "{text}");
        }
    }

    #[test]
    fn a_file_with_the_id_of_a_volume_is_a_volume_without_a_record() {
        let mut site = Site::fake(&["a"]);
        let id = VolumeId::generate(site.pool().id());
        std::fs::write(site.path(format!("volumes/{id}")), "text").unwrap();
        site.open();
        assert_eq!(site.pools().noted_problems()[0].about, About::Volume(id));
        let contents = Contents::read(&*site.kernel, site.pool().root()).unwrap();
        assert!(matches!(
            contents.volumes[0].record,
            Err(UnusableRecord::Damaged(_))
        ));
        assert_eq!(contents.unknown_files, [] as [PathBuf; 0]);
    }
}
