//! Classifies mount options like mount(8).

/// Flags that a bind mount has in addition to those of its source mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindFlags {
    /// The bind mount is read-only.
    pub read_only: bool,
    /// Set-user-ID bits and file capabilities have no effect.
    pub nosuid: bool,
    /// Device nodes can't be opened.
    pub nodev: bool,
    /// Programs can't be executed.
    pub noexec: bool,
}

impl BindFlags {
    /// Flags for a volume that is mounted with the
    /// [default options](fn@crate::default_mount_options) and then with these.
    pub fn of(options: &[String], read_only: bool) -> BindFlags {
        let safe = ["nosuid", "nodev"].map(str::to_owned);
        let (bits, _) = flags_and_data(false, &[&safe, options].concat());
        BindFlags {
            read_only,
            nosuid: bits & libc::MS_NOSUID != 0,
            nodev: bits & libc::MS_NODEV != 0,
            noexec: bits & libc::MS_NOEXEC != 0,
        }
    }
}

/// The options that are flags of mount(2), and whether they set or clear the flag.
const FLAGS: &[(&str, libc::c_ulong, bool)] = &[
    ("ro", libc::MS_RDONLY, true),
    ("rw", libc::MS_RDONLY, false),
    ("nosuid", libc::MS_NOSUID, true),
    ("suid", libc::MS_NOSUID, false),
    ("nodev", libc::MS_NODEV, true),
    ("dev", libc::MS_NODEV, false),
    ("noexec", libc::MS_NOEXEC, true),
    ("exec", libc::MS_NOEXEC, false),
    ("sync", libc::MS_SYNCHRONOUS, true),
    ("async", libc::MS_SYNCHRONOUS, false),
    ("dirsync", libc::MS_DIRSYNC, true),
    ("noatime", libc::MS_NOATIME, true),
    ("atime", libc::MS_NOATIME, false),
    ("nodiratime", libc::MS_NODIRATIME, true),
    ("diratime", libc::MS_NODIRATIME, false),
    ("relatime", libc::MS_RELATIME, true),
    ("norelatime", libc::MS_RELATIME, false),
    ("strictatime", libc::MS_STRICTATIME, true),
    ("nostrictatime", libc::MS_STRICTATIME, false),
    ("lazytime", libc::MS_LAZYTIME, true),
    ("nolazytime", libc::MS_LAZYTIME, false),
    ("iversion", libc::MS_I_VERSION, true),
    ("noiversion", libc::MS_I_VERSION, false),
    ("mand", libc::MS_MANDLOCK, true),
    ("nomand", libc::MS_MANDLOCK, false),
    ("silent", libc::MS_SILENT, true),
    ("loud", libc::MS_SILENT, false),
];

/// The mount(2) flag of an option, and whether the option sets or clears it.
fn flag(option: &str) -> Option<(libc::c_ulong, bool)> {
    let (_, bit, sets) = FLAGS.iter().find(|(name, ..)| *name == option)?;
    Some((*bit, *sets))
}

/// The options that are flags of mount(2).
pub(super) fn flag_names() -> impl Iterator<Item = &'static str> {
    FLAGS.iter().map(|(name, ..)| *name)
}

/// True if these options make a filesystem, and so every bind of it, read-only.
pub fn mounts_read_only(options: &[String]) -> bool {
    flags_and_data(false, options).0 & libc::MS_RDONLY != 0
}

/// True for options that turn discards on or off.
pub fn is_discard(option: &str) -> bool {
    option == "nodiscard" || option == "discard" || option.starts_with("discard=")
}

/// True for options that matter to readers of fstab but not to the kernel.
pub(super) fn is_for_others(option: &str) -> bool {
    matches!(
        option,
        "" | "defaults"
            | "auto"
            | "noauto"
            | "user"
            | "nouser"
            | "users"
            | "owner"
            | "group"
            | "_netdev"
            | "nofail"
    ) || ["x-", "X-", "comment="]
        .iter()
        .any(|prefix| option.starts_with(prefix))
}

/// Flags of mount(2) and the remaining words for the filesystem. `read_only` wins over a later
/// "rw".
pub fn flags_and_data(read_only: bool, options: &[String]) -> (libc::c_ulong, Vec<String>) {
    let mut flags = 0;
    let mut data = Vec::new();
    for option in options.iter().flat_map(|o| o.split(',')) {
        match flag(option) {
            Some((bit, true)) => flags |= bit,
            Some((bit, false)) => flags &= !bit,
            None if is_for_others(option) => {}
            None => data.push(option.to_owned()),
        }
    }
    if read_only {
        flags |= libc::MS_RDONLY;
    }
    (flags, data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_flags_and_data() {
        use libc::*;
        for (read_only, options, flags, data) in [
            (false, "", 0, ""),
            (true, "", MS_RDONLY, ""),
            (true, "rw", MS_RDONLY, ""),
            (false, "ro noatime", MS_RDONLY | MS_NOATIME, ""),
            (false, "ro rw", 0, ""),
            (
                false,
                "noexec,nosuid nodev",
                MS_NOEXEC | MS_NOSUID | MS_NODEV,
                "",
            ),
            (false, "noexec exec", 0, ""),
            (false, "lazytime dirsync", MS_LAZYTIME | MS_DIRSYNC, ""),
            (
                false,
                "nouuid discard strictatime",
                MS_STRICTATIME,
                "nouuid,discard",
            ),
            (false, "defaults _netdev x-systemd.automount nofail", 0, ""),
            (
                false,
                "data=ordered errors=panic",
                0,
                "data=ordered,errors=panic",
            ),
            // The filesystem rejects these words, not this function.
            (false, "bind remount loop", 0, "bind,remount,loop"),
        ] {
            let words: Vec<String> = options.split(' ').map(str::to_owned).collect();
            let (got, words) = flags_and_data(read_only, &words);
            assert_eq!((got, words.join(",").as_str()), (flags, data), "{options}");
        }
    }

    #[test]
    fn binds_are_safe_unless_the_options_say_otherwise() {
        for (options, nosuid, nodev, noexec) in [
            ("", true, true, false),
            ("noatime,discard", true, true, false),
            ("defaults", true, true, false),
            ("suid", false, true, false),
            ("noatime,dev", true, false, false),
            ("dev suid", false, false, false),
            ("suid,nosuid dev,nodev", true, true, false),
            ("noexec", true, true, true),
            ("noexec exec", true, true, false),
        ] {
            for read_only in [false, true] {
                let words: Vec<String> = options.split(' ').map(str::to_owned).collect();
                let expected = BindFlags {
                    read_only,
                    nosuid,
                    nodev,
                    noexec,
                };
                assert_eq!(BindFlags::of(&words, read_only), expected, "{options}");
            }
        }
    }
}
