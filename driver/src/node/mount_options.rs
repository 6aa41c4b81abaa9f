//! The mount options of a volume. Pure.

use super::same_uuid;
use crate::kernel::{FsType, default_mount_options, is_discard, mounts_read_only};
use crate::storage::{Provisioning, Settings};

/// How a filesystem is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// True if the mount and the superblock are read-only.
    pub(crate) read_only: bool,
    /// One option per element.
    pub(crate) words: Vec<String>,
}

/// Combines the safe defaults, the class's flags, and the options that the volume's settings and
/// filesystem need.
///
/// A volume for readers only is still mounted writable, and each publication of it is read-only.
/// Its log may need a replay, it may have to grow after a restore to a larger size, and another PV
/// of the volume may write. A flag `ro` is obeyed, and so is `read_only` (for the only mount of an
/// inline volume).
pub(crate) fn options(
    fs: FsType,
    flags: &[String],
    settings: &Settings,
    read_only: bool,
) -> Options {
    let mut words: Vec<String> = default_mount_options(fs)
        .iter()
        .map(|o| (*o).to_owned())
        .collect();
    let given = flags.iter().flat_map(|flag| flag.split(','));
    words.extend(
        given
            .filter(|flag| !["ro", "rw"].contains(flag))
            .map(str::to_owned),
    );
    if settings.provisioning == Provisioning::Thick {
        // A discard would give up the reserved blocks, so users can't set this option.
        words.retain(|word| !is_discard(word));
        words.push("nodiscard".to_owned());
    } else if !words.iter().any(|word| is_discard(word)) {
        // Only btrfs discards by default; it can also discard asynchronously.
        let is_btrfs = fs == FsType::Btrfs;
        if settings.discard {
            let word = if is_btrfs { "discard=async" } else { "discard" };
            words.push(word.to_owned());
        } else if is_btrfs {
            words.push("nodiscard".to_owned());
        }
    }
    same_uuid::allow_copies(fs, &mut words);
    Options {
        read_only: read_only || mounts_read_only(flags),
        words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(provisioning: Provisioning, discard: bool) -> Settings {
        Settings {
            provisioning,
            discard,
            ..crate::testkit::new("").settings
        }
    }

    #[test]
    fn options_follow_flags_settings_and_filesystem() {
        use FsType::*;
        use Provisioning::*;
        // filesystem, flags, provisioning, discard → options
        let table = [
            (Ext4, "", Thin, false, ""),
            (Ext4, "", Thin, true, "discard"),
            (Ext4, "noatime", Thin, true, "noatime discard"),
            (Ext4, "nodiscard", Thin, true, "nodiscard"),
            (Ext4, "noatime,nodiscard", Thin, true, "noatime nodiscard"),
            // Later options win: a class can override the safe defaults.
            (
                Ext4,
                "suid errors=continue",
                Thin,
                false,
                "suid errors=continue",
            ),
            (Ext4, "discard", Thin, false, "discard"),
            (Ext4, "", Thick, false, "nodiscard"),
            (Ext4, "discard noatime", Thick, true, "noatime nodiscard"),
            (Xfs, "", Thin, false, "nouuid"),
            (Xfs, "nouuid", Thin, true, "nouuid discard"),
            (Xfs, "", Thick, false, "nodiscard nouuid"),
            (Btrfs, "", Thin, false, "nodiscard"),
            (Btrfs, "", Thin, true, "discard=async"),
            (Btrfs, "discard=async", Thin, false, "discard=async"),
            (Btrfs, "discard=async", Thick, true, "nodiscard"),
            (
                Btrfs,
                "discardless",
                Thin,
                true,
                "discardless discard=async",
            ),
        ];
        for (fs, flags, provisioning, discard, expected) in table {
            let words: Vec<String> = flags.split_whitespace().map(str::to_owned).collect();
            let got = options(fs, &words, &settings(provisioning, discard), false);
            let expected = expected.split_whitespace().collect();
            let expected = [default_mount_options(fs).to_vec(), expected].concat();
            let what = format!("{fs} {flags} {provisioning:?} {discard}");
            assert_eq!(got.words, expected, "{what}");
            assert!(!got.read_only);
        }
    }

    #[test]
    fn the_last_of_ro_and_rw_holds() {
        let table: &[(&[&str], bool, bool)] = &[
            (&[], false, false),
            (&[], true, true),
            (&["ro"], false, true),
            (&["rw"], false, false),
            (&["rw"], true, true),
            (&["ro", "rw"], false, false),
            (&["rw", "noatime", "ro"], false, true),
            (&["noatime,ro"], false, true),
        ];
        for (flags, forced, expected) in table {
            let flags: Vec<_> = flags.iter().map(|f| (*f).to_owned()).collect();
            let thin = settings(Provisioning::Thin, false);
            let got = options(FsType::Ext4, &flags, &thin, *forced);
            assert_eq!(got.read_only, *expected, "{flags:?} {forced}");
            assert!(!got.words.iter().any(|w| w == "ro" || w == "rw"));
        }
    }
}
