//! The mkfs options that a StorageClass may set, by filesystem.
//!
//! A table contains an option only if it reads no file, reaches no other device and does not change
//! how the kernel treats errors. mkfs itself checks the meaning of a value.

use super::FsType;
use super::option_value::OptionValue;

/// An allowed option, with all its names.
struct MkfsOption {
    names: &'static [&'static str],
    value: OptionValue,
}

use OptionValue::{Features, Label, OneOf, Owner, Pairs, Percent, Size};

const fn option(names: &'static [&'static str], value: OptionValue) -> MkfsOption {
    MkfsOption { names, value }
}

const SWITCH: OptionValue = OneOf("0 1");

/// Left out on purpose: -d, -l and -z read or write files. -e and -S concern errors and damage.
/// -E offset and blocks-count exceed the device's bounds, and -E discard frees a thick volume's
/// space. -O journal_dev and -J device reach other devices.
static EXT4: &[MkfsOption] = &[
    // Loop devices have blocks of this size.
    option(&["-b"], OneOf("4096")),
    option(&["-C"], Size),
    option(
        &["-E"],
        Pairs(&[
            (
                "lazy_itable_init lazy_journal_init packed_meta_blocks",
                SWITCH,
            ),
            ("nodiscard", OptionValue::None),
            ("num_backup_sb", OneOf("0 1 2")),
            ("resize stride stripe_width stripe-width", Size),
            ("root_owner", Owner),
        ]),
    ),
    option(&["-g"], Size),
    option(&["-G"], Size),
    option(&["-i"], Size),
    option(&["-I"], Size),
    option(&["-J"], Pairs(&[("size", Size)])),
    option(&["-L"], Label(16)),
    option(&["-m"], Percent),
    option(&["-N"], Size),
    option(
        &["-O"],
        Features(
            "64bit bigalloc casefold dir_index dir_nlink ea_inode encrypt ext_attr extent \
             extents extra_isize ^fast_commit filetype flex_bg has_journal huge_file \
             inline_data large_dir large_file meta_bg metadata_csum metadata_csum_seed \
             orphan_file project quota resize_inode sparse_super sparse_super2 stable_inodes \
             uninit_bg verity",
        ),
    ),
];

/// Left out on purpose: -c and -p read files, -r and the keys name, file and logdev of -d and -l
/// reach other devices or files, -N makes nothing.
static XFS: &[MkfsOption] = &[
    option(&["-b"], Pairs(&[("size", Size)])),
    option(
        &["-d"],
        Pairs(&[
            (
                "agcount agsize concurrency cowextsize extszinherit projinherit su \
             sunit sw swidth",
                Size,
            ),
            ("daxinherit", SWITCH),
            ("noalign", OptionValue::None),
        ]),
    ),
    option(
        &["-i"],
        Pairs(&[
            ("attr maxpct perblock size", Size),
            ("exchange nrext64 projid32bit sparse", SWITCH),
        ]),
    ),
    option(
        &["-l"],
        Pairs(&[
            ("concurrency size su sunit version", Size),
            ("lazy-count", SWITCH),
        ]),
    ),
    option(&["-L"], Label(12)),
    option(
        &["-m"],
        Pairs(&[("bigtime crc finobt inobtcount reflink rmapbt", SWITCH)]),
    ),
    option(
        &["-n"],
        Pairs(&[
            ("ftype parent", SWITCH),
            ("size", Size),
            ("version", OneOf("2 ci")),
        ]),
    ),
    option(&["-s"], Pairs(&[("size", Size)])),
];

/// Left out on purpose: --rootdir and --subvol copy files, and other profiles need more devices.
static BTRFS: &[MkfsOption] = &[
    option(&["-d", "--data"], OneOf("dup single")),
    option(&["-L", "--label"], Label(255)),
    option(&["-m", "--metadata"], OneOf("dup single")),
    option(&["-M", "--mixed"], OptionValue::None),
    option(&["-n", "--nodesize"], Size),
    option(
        &["-O", "--features"],
        Features(
            "block-group-tree extref free-space-tree mixed-bg no-holes quota skinny-metadata \
             squota",
        ),
    ),
    option(
        &["-R", "--runtime-features"],
        Features("block-group-tree free-space-tree quota"),
    ),
    option(&["-s", "--sectorsize"], OneOf("4096")),
    option(
        &["--csum", "--checksum"],
        OneOf("blake2 crc32c sha256 xxhash"),
    ),
];

fn table(fs: FsType) -> &'static [MkfsOption] {
    match fs {
        FsType::Ext4 => EXT4,
        FsType::Xfs => XFS,
        FsType::Btrfs => BTRFS,
    }
}

/// Checks the mkfs options of a StorageClass. The error says why an option is not allowed.
pub fn check_mkfs_options(fs: FsType, words: &[String]) -> Result<(), String> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some((name, attached, value)) = find(fs, word) else {
            let allowed: Vec<_> = table(fs)
                .iter()
                .flat_map(|option| option.names)
                .copied()
                .collect();
            return Err(format!(
                "{word:?} is not allowed for {fs}; allowed are {}",
                allowed.join(", ")
            ));
        };
        let given = match (value, attached) {
            (OptionValue::None, _) => continue,
            (_, Some(attached)) => attached,
            (_, None) => words.next().ok_or_else(|| format!("{name} has no value"))?,
        };
        value
            .check(given)
            .map_err(|why| format!("{name} {given:?} {why} ({fs})"))?;
    }
    Ok(())
}

/// Finds the option that a word names, with its value if the word contains one.
fn find(fs: FsType, word: &str) -> Option<(&'static str, Option<&str>, &'static OptionValue)> {
    table(fs).iter().find_map(|option| {
        option.names.iter().find_map(|name| {
            let rest = word.strip_prefix(name)?;
            let attached = match (&option.value, name.starts_with("--"), rest) {
                (_, _, "") => None,
                (OptionValue::None, ..) => return None,
                (_, true, rest) => Some(rest.strip_prefix('=')?),
                (_, false, rest) => Some(rest),
            };
            Some((*name, attached, &option.value))
        })
    })
}

#[cfg(test)]
mod tests;
