//! The mkfs options that a StorageClass may set, by filesystem.
//!
//! A table contains an option only if it reads no file, reaches no other device and does not change
//! how the kernel treats errors. mkfs itself checks the meaning of a value.

use super::FsType;

/// An allowed option, with all its names.
struct Allowed {
    names: &'static [&'static str],
    value: Value,
}

/// The values that an option accepts.
enum Value {
    /// The option takes no value.
    None,
    /// A number of bytes, blocks or items, with a one-letter unit if the tool knows one.
    Size,
    /// A percentage up to 50.
    Percent,
    /// The owner of the root directory, as uid:gid.
    Owner,
    /// A label of at most this many bytes.
    Label(usize),
    /// One of these words, which are separated by spaces.
    OneOf(&'static str),
    /// A comma-separated list of these words, which are separated by spaces here; `^` before a word
    /// switches it off. A word with `^` in this table can only be switched off.
    Features(&'static str),
    /// A comma-separated list of these keys, in the form key=value. Keys with the same kind of
    /// value are in one entry, separated by spaces.
    Pairs(&'static [(&'static str, Value)]),
}

use Value::{Features, Label, OneOf, Owner, Pairs, Percent, Size};

const fn option(names: &'static [&'static str], value: Value) -> Allowed {
    Allowed { names, value }
}

const SWITCH: Value = OneOf("0 1");

/// Left out on purpose: -d, -l and -z read or write files. -e and -S concern errors and damage.
/// -E offset and blocks-count exceed the device's bounds, and -E discard frees a thick volume's
/// space. -O journal_dev and -J device reach other devices.
static EXT4: &[Allowed] = &[
    // Loop devices have blocks of this size.
    option(&["-b"], OneOf("4096")),
    option(&["-C"], Size),
    option(
        &["-E"],
        Pairs(&[
            ("lazy_itable_init lazy_journal_init packed_meta_blocks", SWITCH),
            ("nodiscard", Value::None),
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
static XFS: &[Allowed] = &[
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
            ("noalign", Value::None),
        ]),
    ),
    option(
        &["-i"],
        Pairs(&[
            ("attr maxpct perblock size", Size),
            ("exchange nrext64 projid32bit sparse", SWITCH),
        ]),
    ),
    option(&["-l"], Pairs(&[("concurrency size su sunit version", Size), ("lazy-count", SWITCH)])),
    option(&["-L"], Label(12)),
    option(&["-m"], Pairs(&[("bigtime crc finobt inobtcount reflink rmapbt", SWITCH)])),
    option(&["-n"], Pairs(&[("ftype parent", SWITCH), ("size", Size), ("version", OneOf("2 ci"))])),
    option(&["-s"], Pairs(&[("size", Size)])),
];

/// Left out on purpose: --rootdir and --subvol copy files, and other profiles need more devices.
static BTRFS: &[Allowed] = &[
    option(&["-d", "--data"], OneOf("dup single")),
    option(&["-L", "--label"], Label(255)),
    option(&["-m", "--metadata"], OneOf("dup single")),
    option(&["-M", "--mixed"], Value::None),
    option(&["-n", "--nodesize"], Size),
    option(
        &["-O", "--features"],
        Features(
            "block-group-tree extref free-space-tree mixed-bg no-holes quota skinny-metadata \
             squota",
        ),
    ),
    option(&["-R", "--runtime-features"], Features("block-group-tree free-space-tree quota")),
    option(&["-s", "--sectorsize"], OneOf("4096")),
    option(&["--csum", "--checksum"], OneOf("blake2 crc32c sha256 xxhash")),
];

fn table(fs: FsType) -> &'static [Allowed] {
    match fs {
        FsType::Ext4 => EXT4,
        FsType::Xfs => XFS,
        FsType::Btrfs => BTRFS,
    }
}

/// Features that tools and kernels know, and why the driver does not make them.
const REFUSED: &[(&str, &str)] = &[(
    "fast_commit",
    "refused: where e2fsck replays the journal after a crash, it drops fast commits, and with them \
     data that fsync had written",
)];

/// Checks the mkfs options of a StorageClass. The error says why an option is not allowed.
pub fn check_mkfs_options(fs: FsType, words: &[String]) -> Result<(), String> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some((name, attached, value)) = find(fs, word) else {
            let allowed: Vec<_> =
                table(fs).iter().flat_map(|option| option.names).copied().collect();
            return Err(format!(
                "{word:?} is not allowed for {fs}; allowed are {}",
                allowed.join(", ")
            ));
        };
        let given = match (value, attached) {
            (Value::None, _) => continue,
            (_, Some(attached)) => attached,
            (_, None) => words.next().ok_or_else(|| format!("{name} has no value"))?,
        };
        value.check(given).map_err(|why| format!("{name} {given:?} {why} ({fs})"))?;
    }
    Ok(())
}

/// Finds the option that a word names, with its value if the word contains one.
fn find(fs: FsType, word: &str) -> Option<(&'static str, Option<&str>, &'static Value)> {
    table(fs).iter().find_map(|option| {
        option.names.iter().find_map(|name| {
            let rest = word.strip_prefix(name)?;
            let attached = match (&option.value, name.starts_with("--"), rest) {
                (_, _, "") => None,
                (Value::None, ..) => return None,
                (_, true, rest) => Some(rest.strip_prefix('=')?),
                (_, false, rest) => Some(rest),
            };
            Some((*name, attached, &option.value))
        })
    })
}

impl Value {
    fn check(&self, given: &str) -> Result<(), String> {
        match self {
            Value::None => Err("takes no value".to_owned()),
            Size => is(is_size(given), "is not a size"),
            Percent => {
                let half = given.parse::<f64>().is_ok_and(|p| (0.0..=50.0).contains(&p));
                is(half && !given.starts_with(['+', '-']), "is not a percentage up to 50")
            }
            Owner => {
                let ids = given.split_once(':');
                let ids = ids.is_some_and(|(user, group)| is_id(user) && is_id(group));
                is(ids, "is not uid:gid")
            }
            Label(max) => {
                let plain = !given.starts_with('-')
                    && !given.contains(|c: char| c == '/' || c.is_control());
                is(
                    plain && given.len() <= *max,
                    "is not a valid label: too long, or with '/' or a leading '-'",
                )
            }
            OneOf(words) => one_of(words, given).map_err(|why| format!("is {why}")),
            Features(words) => given.split(',').try_for_each(|feature| {
                let name = feature.strip_prefix('^').unwrap_or(feature);
                let refused = REFUSED.iter().find(|(refused, _)| *refused == feature);
                let known = match refused {
                    Some((_, why)) => Err((*why).to_owned()),
                    None => one_of(words, feature).or_else(|_| one_of(words, name)),
                };
                known.map_err(|why| format!("has the feature {feature:?}, which is {why}"))
            }),
            Pairs(known) => given.split(',').try_for_each(|pair| in_pairs(known, pair)),
        }
    }
}

fn in_pairs(known: &[(&str, Value)], pair: &str) -> Result<(), String> {
    let (key, given) = pair.split_once('=').map_or((pair, None), |(k, v)| (k, Some(v)));
    let named = |(keys, _): &&(&str, Value)| one_of(keys, key).is_ok();
    let Some((_, value)) = known.iter().find(named) else {
        let keys: Vec<_> = known.iter().map(|(keys, _)| *keys).collect();
        let why = one_of(&keys.join(" "), key);
        return why.map_err(|why| format!("has the key {key:?}, which is {why}"));
    };
    match (value, given) {
        (Value::None, None) => Ok(()),
        (_, None) => Err(format!("has no value for {key}")),
        (value, Some(given)) => {
            value.check(given).map_err(|why| format!("has {pair:?}, which {why}"))
        }
    }
}

fn one_of(words: &str, given: &str) -> Result<(), String> {
    let known = words.split(' ').any(|word| word == given);
    is(known, &format!("not one of {}", words.replace(' ', ", ")))
}

fn is(holds: bool, otherwise: &str) -> Result<(), String> {
    holds.then_some(()).ok_or_else(|| otherwise.to_owned())
}

/// True for digits with an optional one-letter unit.
fn is_size(word: &str) -> bool {
    let digits = word.strip_suffix(|c: char| c.is_ascii_alphabetic()).unwrap_or(word);
    (1..=15).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit())
}

fn is_id(word: &str) -> bool {
    word.bytes().all(|b| b.is_ascii_digit()) && word.parse::<u32>().is_ok()
}

#[cfg(test)]
mod tests;
