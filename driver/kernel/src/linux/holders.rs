//! What has a block device in use, as far as sysfs and `/proc` tell.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::mountinfo;

/// What has a device or one of its partitions in use, and how a person ends that. Empty if nothing
/// is known.
pub(super) fn of(device: &Path) -> Vec<String> {
    let Ok(metadata) = std::fs::metadata(device) else {
        return Vec::new();
    };
    if !metadata.file_type().is_block_device() {
        return Vec::new();
    }
    let number = (
        rustix::fs::major(metadata.rdev()),
        rustix::fs::minor(metadata.rdev()),
    );
    Machine {
        sys: "/sys".into(),
        proc: "/proc".into(),
    }
    .holders(number)
}

/// The directories that describe a machine.
struct Machine {
    sys: PathBuf,
    proc: PathBuf,
}

impl Machine {
    fn holders(&self, (major, minor): (u32, u32)) -> Vec<String> {
        let Ok(disk) = self
            .sys
            .join(format!("dev/block/{major}:{minor}"))
            .canonicalize()
        else {
            return Vec::new();
        };
        let partitions = entries(&disk).into_iter().map(|name| disk.join(name));
        let partitions = partitions.filter(|path| path.join("partition").exists());
        let parts: Vec<PathBuf> = std::iter::once(disk.clone()).chain(partitions).collect();
        let mut found: Vec<String> = parts
            .iter()
            .flat_map(|part| self.holders_of(part))
            .collect();
        found.sort();
        found.dedup();
        found
    }

    fn holders_of(&self, part: &Path) -> Vec<String> {
        let name = name_of(part);
        let stacked = entries(&part.join("holders"))
            .into_iter()
            .map(|holder| self.stacked(&holder));
        let number = read(&part.join("dev"));
        let swaps = read(&self.proc.join("swaps"));
        let swap = swaps
            .lines()
            .skip(1)
            .filter_map(|line| line.split_whitespace().next());
        let swap = swap.filter(|used| Path::new(used).file_name() == Some(name.as_ref()));
        let swap = swap.map(|used| format!("swap is on it (swapoff {used})"));
        stacked
            .chain(swap)
            .chain(self.mounts(&name, &number))
            .chain(self.loops(&name))
            .collect()
    }

    /// A device above another one: device mapper, RAID, or something else.
    fn stacked(&self, holder: &str) -> String {
        let block = self.sys.join("class/block").join(holder);
        let (mapped, uuid) = (read(&block.join("dm/name")), read(&block.join("dm/uuid")));
        if mapped.is_empty() {
            if holder.starts_with("md") {
                return format!(
                    "it is part of the RAID array /dev/{holder} (give the pool /dev/{holder}, or \
                     end the array: mdadm --stop /dev/{holder})"
                );
            }
            return format!("/dev/{holder} is above it (give the pool /dev/{holder})");
        }
        let path = format!("/dev/mapper/{mapped}");
        match uuid.split('-').next() {
            Some("LVM") => format!(
                "LVM has the logical volume {path} on it (give the pool a logical volume, or \
                 deactivate this one: lvchange --activate n {path})"
            ),
            Some("mpath") => {
                format!("it is a path of the multipath device {path} (give the pool {path})")
            }
            Some("CRYPT") => format!(
                "it is the encrypted device below {path} (give the pool {path}, or close it: \
                 cryptsetup close {mapped})"
            ),
            _ => format!(
                "device mapper has {path} on it (give the pool {path}, or remove it: dmsetup \
                 remove {mapped})"
            ),
        }
    }

    fn mounts(&self, name: &str, number: &str) -> Vec<String> {
        let table = std::fs::read(self.proc.join("thread-self/mountinfo")).unwrap_or_default();
        let entries = mountinfo::parse(&table).unwrap_or_default();
        let here = entries
            .iter()
            .filter(|m| format!("{}:{}", m.device.0, m.device.1) == number);
        let said = here.map(|mount| {
            let at = mount.mount_point.display();
            format!("/dev/{name} is mounted at {at} (umount {at})")
        });
        said.collect()
    }

    /// Loop devices over the device.
    fn loops(&self, name: &str) -> Vec<String> {
        let loops = entries(&self.sys.join("block")).into_iter();
        let over = loops.filter(|device| {
            let backing = read(
                &self
                    .sys
                    .join("block")
                    .join(device)
                    .join("loop/backing_file"),
            );
            Path::new(&backing) == Path::new("/dev").join(name)
        });
        over.map(|device| format!("/dev/{device} is over it (losetup -d /dev/{device})"))
            .collect()
    }
}

/// The names in a directory, in order; none if there is no such directory.
fn entries(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<_> = names
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// The text of a small file; empty if it can't be read.
fn read(path: &Path) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&text).trim_end().to_owned()
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};

    use rstest::rstest;

    use super::*;

    const SWAPS: &str = "Filename\tType\tSize\tUsed\tPriority\n";

    /// A machine with the disk sdb (8:16) and its partition sdb1, with these files in addition.
    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Machine) {
        let root = tempfile::tempdir().unwrap();
        let base = [
            ("sys/block/sdb/dev", "8:16\n"),
            ("sys/block/sdb/sdb1/dev", "8:17\n"),
            ("sys/block/sdb/sdb1/partition", "1\n"),
            ("proc/swaps", SWAPS),
        ];
        for (path, content) in base.iter().chain(files) {
            let path = root.path().join(path);
            create_dir_all(path.parent().unwrap()).unwrap();
            write(path, content).unwrap();
        }
        create_dir_all(root.path().join("sys/dev/block")).unwrap();
        let link = root.path().join("sys/dev/block/8:16");
        std::os::unix::fs::symlink("../../block/sdb", link).unwrap();
        let (sys, proc) = (root.path().join("sys"), root.path().join("proc"));
        (root, Machine { sys, proc })
    }

    #[rstest]
    #[case::nothing(&[], "")]
    #[case::lvm(
        &[("sys/block/sdb/holders/dm-0", ""), ("sys/class/block/dm-0/dm/name", "vg-data\n"),
          ("sys/class/block/dm-0/dm/uuid", "LVM-abc\n")],
        "lvchange --activate n /dev/mapper/vg-data"
    )]
    #[case::multipath(
        &[("sys/block/sdb/holders/dm-1", ""), ("sys/class/block/dm-1/dm/name", "mpatha\n"),
          ("sys/class/block/dm-1/dm/uuid", "mpath-36\n")],
        "give the pool /dev/mapper/mpatha"
    )]
    #[case::encrypted(
        &[("sys/block/sdb/holders/dm-1", ""), ("sys/class/block/dm-1/dm/name", "data\n"),
          ("sys/class/block/dm-1/dm/uuid", "CRYPT-LUKS2-1\n")],
        "cryptsetup close data"
    )]
    #[case::mapped(
        &[("sys/block/sdb/holders/dm-1", ""), ("sys/class/block/dm-1/dm/name", "x\n")],
        "dmsetup remove x"
    )]
    #[case::raid_of_a_partition(
        &[("sys/block/sdb/sdb1/holders/md127", "")], "mdadm --stop /dev/md127"
    )]
    #[case::another_stack(&[("sys/block/sdb/holders/bcache0", "")], "bcache0 is above it")]
    #[case::swap(&[("proc/swaps", "Filename\n/dev/sdb partition 1 0 -2\n")], "swapoff /dev/sdb")]
    #[case::swap_elsewhere(&[("proc/swaps", "Filename\n/dev/sdc partition 1 0 -2\n")], "")]
    #[case::a_mounted_partition(
        &[("proc/thread-self/mountinfo", "40 1 8:17 / /srv rw - ext4 /dev/sdb1 rw\n")],
        "/dev/sdb1 is mounted at /srv (umount /srv)"
    )]
    #[case::loop_device(
        &[("sys/block/loop3/loop/backing_file", "/dev/sdb\n")], "losetup -d /dev/loop3"
    )]
    fn names_what_has_a_device(#[case] files: &[(&str, &str)], #[case] expected: &str) {
        let (_root, machine) = machine(files);
        let found = machine.holders((8, 16));
        assert_eq!(found.is_empty(), expected.is_empty(), "{found:?}");
        assert!(found.join("; ").contains(expected), "{found:?}");
    }
}
