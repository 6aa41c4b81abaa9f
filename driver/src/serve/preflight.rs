//! Checks the requirements of the machine, and reads its host name.

use std::io;
use std::path::Path;

use super::config::ServeSettings;
use super::error::Error;
use crate::kernel::{FsType, Kernel};

/// The host's name.
pub(super) fn hostname() -> io::Result<String> {
    let path = Path::new("/proc/sys/kernel/hostname");
    Ok(std::fs::read_to_string(path)?.trim().to_owned())
}

/// Fails if the machine lacks something the driver requires (`missing`). Logs which filesystems are
/// not offered, and why.
pub(super) fn check(
    missing: Vec<String>,
    kernel: &dyn Kernel,
    settings: &ServeSettings,
) -> Result<(), Error> {
    let found = find(
        missing,
        kernel.filesystems(),
        settings.controller.capabilities.default_fs,
    );
    for line in &found.warnings {
        tracing::warn!("{line}");
    }
    if found.fatal.is_empty() {
        return Ok(());
    }
    Err(Error::Machine(found.fatal))
}

#[derive(Debug, Default, PartialEq, Eq)]
struct MachineProblems {
    fatal: Vec<String>,
    warnings: Vec<String>,
}

fn find(
    missing: Vec<String>,
    filesystems: Vec<(FsType, Result<(), String>)>,
    default: FsType,
) -> MachineProblems {
    let mut found = MachineProblems {
        fatal: missing,
        warnings: Vec::new(),
    };
    if !found.fatal.is_empty() {
        // The tools can't be checked, for example without root.
        return found;
    }
    if filesystems.iter().all(|(_, offered)| offered.is_err()) {
        let whys = filesystems
            .into_iter()
            .filter_map(|(_, offered)| offered.err());
        found.fatal.push(format!(
            "the tools of every filesystem ({})",
            whys.collect::<Vec<_>>().join(", ")
        ));
        return found;
    }
    for (fs, offered) in filesystems {
        let Err(why) = offered else {
            continue;
        };
        let also = if fs == default {
            ", and it is the default (--default-fstype)"
        } else {
            ""
        };
        found
            .warnings
            .push(format!("{fs} is not offered{also}: {why}"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_tools_are_reported_and_missing_requirements_stop() {
        let gone = |fs: FsType| (fs, Err(format!("no mkfs.{fs}")));
        let here = |fs: FsType| (fs, Ok(()));
        let [ext4, xfs, btrfs] = FsType::ALL;

        let all = find(vec![], vec![here(ext4), here(xfs), here(btrfs)], ext4);
        assert_eq!(all, MachineProblems::default());

        let some = find(vec![], vec![gone(ext4), gone(xfs), here(btrfs)], ext4);
        assert_eq!(some.fatal, [""; 0]);
        assert_eq!(
            some.warnings,
            [
                "ext4 is not offered, and it is the default (--default-fstype): no mkfs.ext4",
                "xfs is not offered: no mkfs.xfs",
            ]
        );

        let none = find(vec![], vec![gone(ext4), gone(xfs), gone(btrfs)], ext4);
        assert_eq!(
            none.fatal,
            ["the tools of every filesystem (no mkfs.ext4, no mkfs.xfs, no mkfs.btrfs)"]
        );
        let user = find(vec!["root".into()], vec![gone(ext4), gone(xfs)], ext4);
        assert_eq!(user.fatal, ["root"]);
        assert_eq!(none.warnings, [""; 0]);
    }

    #[test]
    fn the_host_has_a_name() {
        let name = hostname().unwrap();
        assert!(!name.is_empty() && !name.ends_with('\n'));
    }
}
