//! The mount options that a StorageClass may set, by filesystem.
//!
//! A table contains an option only if it reaches no other device or file, shows nothing that was
//! never completely written, and does not turn an error of the filesystem into one of the node. The
//! kernel checks the meaning of a value.

use super::FsType;
use super::mount_flags::{flag_names, is_for_others};
use super::option_value::OptionValue;

use OptionValue::{Number, OneOf, Size, Subvolume};

/// Options with the same kind of value, separated by spaces. One that may have a value or none is
/// in two rows.
type MountOptionRow = (&'static str, OptionValue);

/// The options that label files for SELinux, on every filesystem. Kubelet adds `context`. Their
/// values may have commas, in quotes.
pub const LABELS: [&str; 4] = ["context", "defcontext", "fscontext", "rootcontext"];

/// Left out on purpose: journal_dev and journal_path reach other devices. usrjquota and grpjquota
/// name files. norecovery, noload and sb show what the journal has not completed. abort,
/// errors=panic, warn_on_error and the debug options stop the filesystem or the node. dax=always
/// can't be mounted.
static EXT4: &[MountOptionRow] = &[
    (
        "acl auto_da_alloc barrier block_validity bsddf bsdgroups delalloc dioread_lock \
         dioread_nolock discard grpid grpquota i_version init_itable inlinecrypt \
         journal_async_commit journal_checksum minixdf no_mbcache no_prefetch_block_bitmaps noacl \
         noauto_da_alloc nobarrier noblock_validity nodelalloc nodioread_nolock nodiscard nogrpid \
         noinit_itable nojournal_checksum nombcache noquota nouid32 nouser_xattr \
         nowarn_on_error prefetch_block_bitmaps prjquota quota sysvgroups user_xattr usrquota",
        OptionValue::None,
    ),
    ("auto_da_alloc barrier", OneOf("0 1")),
    ("data", OneOf("journal ordered writeback")),
    ("data_err", OneOf("abort ignore")),
    ("dax", OneOf("inode never")),
    ("errors", OneOf("continue remount-ro")),
    (
        "commit init_itable inode_readahead_blks journal_ioprio max_batch_time max_dir_size_kb \
         mb_optimize_scan min_batch_time resgid resuid stripe",
        Number,
    ),
];

/// Left out on purpose: logdev and rtdev reach other devices, norecovery shows what the log has not
/// completed, and errortag makes errors.
static XFS: &[MountOptionRow] = &[
    (
        "attr2 bsdgroups discard filestreams gqnoenforce gquota grpid grpquota ikeep inode32 inode64 \
         largeio lifetime noalign noattr2 nodiscard nogrpid noikeep nolargeio nolifetime noquota \
         nouuid pqnoenforce pquota prjquota qnoenforce quota swalloc sysvgroups uqnoenforce uquota \
         usrquota wsync",
        OptionValue::None,
    ),
    ("allocsize logbsize max_atomic_write", Size),
    ("dax", OneOf("inode never")),
    ("logbufs sunit swidth", Number),
];

/// Left out on purpose: device reaches other devices, and degraded does without some. rescue,
/// norecovery, nologreplay, usebackuproot and their older names show what is damaged or was not
/// completed. fatal_errors, fragment and ref_verify are for tests.
static BTRFS: &[MountOptionRow] = &[
    (
        "acl autodefrag barrier clear_cache compress compress-force datacow datasum discard \
         enospc_debug flushoncommit noacl noautodefrag nobarrier nodatacow nodatasum nodiscard \
         noenospc_debug noflushoncommit nospace_cache nossd nossd_spread notreelog \
         rescan_uuid_tree skip_balance space_cache ssd ssd_spread treelog user_subvol_rm_allowed",
        OptionValue::None,
    ),
    (
        "compress compress-force",
        OneOf(
            "lzo no none zlib zlib:1 zlib:2 zlib:3 zlib:4 zlib:5 zlib:6 zlib:7 zlib:8 zlib:9 zstd \
             zstd:1 zstd:2 zstd:3 zstd:4 zstd:5 zstd:6 zstd:7 zstd:8 zstd:9 zstd:10 zstd:11 \
             zstd:12 zstd:13 zstd:14 zstd:15",
        ),
    ),
    ("discard", OneOf("async sync")),
    ("space_cache", OneOf("v1 v2")),
    ("commit metadata_ratio subvolid thread_pool", Number),
    ("max_inline", Size),
    ("subvol", Subvolume),
];

fn table(fs: FsType) -> &'static [MountOptionRow] {
    match fs {
        FsType::Ext4 => EXT4,
        FsType::Xfs => XFS,
        FsType::Btrfs => BTRFS,
    }
}

/// A mount option that a class may not set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedOption {
    /// Its name without the value, which may be a secret.
    pub name: String,
    why: Why,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    /// The filesystem's table does not have it.
    Unlisted,
    /// What is wrong with its value, in words that go on after the name and do not repeat the
    /// value.
    Value(String),
}

/// Checks the mount options of a StorageClass. The error names the option, the filesystem and what
/// is allowed.
pub fn check_mount_options(fs: FsType, flags: &[String]) -> Result<(), String> {
    let Some(RefusedOption { name, why }) = refused_mount_options(fs, flags).into_iter().next()
    else {
        return Ok(());
    };
    Err(match why {
        Why::Value(why) => format!("{name:?} of {fs} {why}"),
        Why::Unlisted => format!(
            "{name:?} is not allowed for {fs}; allowed are {}; and for all filesystems {}",
            names(fs).join(", "),
            flag_names().chain(LABELS).collect::<Vec<_>>().join(", ")
        ),
    })
}

/// The options of a filesystem, without those that all have.
fn names(fs: FsType) -> Vec<&'static str> {
    let mut names: Vec<_> = table(fs)
        .iter()
        .flat_map(|(names, _)| names.split(' '))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Those of a volume's mount options that its class may not set.
///
/// The options become one text, which the kernel splits at its commas, in quotes or not. So each
/// piece is checked, and only the categories of a label can be in quotes.
pub fn refused_mount_options(fs: FsType, flags: &[String]) -> Vec<RefusedOption> {
    let mut refused = Vec::new();
    let mut quoted: Option<&str> = None;
    for word in flags.iter().flat_map(|flag| flag.split(',')) {
        let (name, given) = match word.split_once('=') {
            Some((name, given)) => (name, Some(given)),
            None => (word, None),
        };
        let why = match (quoted, LABELS.iter().find(|label| **label == name), given) {
            (Some(_), ..) if is_categories(word.strip_suffix('"').unwrap_or(word)) => {
                quoted = quoted.filter(|_| !word.ends_with('"'));
                continue;
            }
            (None, Some(label), Some(given)) => {
                let open = given.strip_prefix('"');
                quoted = open.filter(|rest| !rest.ends_with('"')).map(|_| *label);
                let text = open.map_or(given, |rest| rest.strip_suffix('"').unwrap_or(rest));
                if is_label(text) {
                    continue;
                }
                Why::Value("has a value that is not an SELinux label".to_owned())
            }
            _ => match listed(fs, name, given) {
                Ok(()) => continue,
                Err(why) => why,
            },
        };
        // Words in a log or event stay short.
        let name = name.chars().take(64).collect();
        refused.push(RefusedOption { name, why });
    }
    if let Some(label) = quoted {
        let why = Why::Value("has no closing quote".to_owned());
        refused.push(RefusedOption {
            name: label.to_owned(),
            why,
        });
    }
    refused
}

fn listed(fs: FsType, name: &str, given: Option<&str>) -> Result<(), Why> {
    let Some(given) = given else {
        if is_for_others(name) || flag_names().any(|flag| flag == name) {
            return Ok(());
        }
        let rows = rows(fs, name);
        if rows.is_empty() {
            return Err(Why::Unlisted);
        }
        let needs_none = rows.iter().any(|value| matches!(value, OptionValue::None));
        return needs_none
            .then_some(())
            .ok_or_else(|| Why::Value("has no value".to_owned()));
    };
    if is_for_others(&format!("{name}=")) {
        return Ok(());
    }
    let rows = rows(fs, name);
    let mut valued = rows
        .iter()
        .filter(|value| !matches!(value, OptionValue::None));
    match valued.next() {
        Some(value) => value
            .check(given)
            .map_err(|why| Why::Value(format!("has a value that {why}"))),
        None if rows.is_empty() => Err(Why::Unlisted),
        None => Err(Why::Value("takes no value".to_owned())),
    }
}

fn rows(fs: FsType, name: &str) -> Vec<&'static OptionValue> {
    let rows = table(fs).iter();
    let named = rows.filter(|(names, _)| names.split(' ').any(|known| known == name));
    named.map(|(_, value)| value).collect()
}

/// True for the start of a label: user, role, type, and a range up to its first comma.
fn is_label(text: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_.:-".contains(c))
}

/// True for categories after a comma in a label's range, such as `c2`, `c2.c5` or `c2-s3:c4`.
fn is_categories(text: &str) -> bool {
    match text.split_once('-') {
        None => is_category_range(text),
        Some((low, high)) => {
            let (level, its) = high.split_once(':').unwrap_or((high, "c0"));
            is_category_range(low) && is_numbered(level, 's') && is_category_range(its)
        }
    }
}

/// True for `c2` or `c2.c5`.
fn is_category_range(text: &str) -> bool {
    text.split('.').all(|one| is_numbered(one, 'c'))
}

/// True for this letter and a number after it.
fn is_numbered(text: &str, letter: char) -> bool {
    let digits = text.strip_prefix(letter).unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests;
