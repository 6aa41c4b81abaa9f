//! The values of options that a StorageClass may set, for mkfs and for mounts.

/// The values that an option accepts.
pub(super) enum OptionValue {
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
    Pairs(&'static [(&'static str, OptionValue)]),
    /// A decimal number of 32 bits.
    Number,
    /// A path of plain components, below the root of the filesystem itself.
    Subvolume,
}

use OptionValue::{Features, Label, Number, OneOf, Owner, Pairs, Percent, Size, Subvolume};

/// Features that tools and kernels know, and why the driver does not make them.
const REFUSED: &[(&str, &str)] = &[(
    "fast_commit",
    "refused: where e2fsck replays the journal after a crash, it drops fast commits, and with them \
     data that fsync had written",
)];

impl OptionValue {
    /// Checks a given value. The error goes on after the option's name.
    pub(super) fn check(&self, given: &str) -> Result<(), String> {
        match self {
            OptionValue::None => Err("takes no value".to_owned()),
            Size => is(is_size(given), "is not a size"),
            Percent => {
                let half = given
                    .parse::<f64>()
                    .is_ok_and(|p| (0.0..=50.0).contains(&p));
                is(
                    half && !given.starts_with(['+', '-']),
                    "is not a percentage up to 50",
                )
            }
            Owner => {
                let ids = given.split_once(':');
                let ids = ids.is_some_and(|(user, group)| is_number(user) && is_number(group));
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
            Number => is(is_number(given), "is not a number of 32 bits"),
            Subvolume => {
                let plain = given
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "/@._-".contains(c));
                let inside = !given.split('/').any(|part| part == "..");
                is(
                    !given.is_empty() && inside && plain,
                    "is not a path of letters, digits, '@', '.', '_' and '-' without \"..\"",
                )
            }
        }
    }
}

fn in_pairs(known: &[(&str, OptionValue)], pair: &str) -> Result<(), String> {
    let (key, given) = pair
        .split_once('=')
        .map_or((pair, None), |(k, v)| (k, Some(v)));
    let Some((_, value)) = known.iter().find(|(keys, _)| one_of(keys, key).is_ok()) else {
        let keys: Vec<_> = known.iter().map(|(keys, _)| *keys).collect();
        let why = one_of(&keys.join(" "), key);
        return why.map_err(|why| format!("has the key {key:?}, which is {why}"));
    };
    match (value, given) {
        (OptionValue::None, None) => Ok(()),
        (_, None) => Err(format!("has no value for {key}")),
        (value, Some(given)) => value
            .check(given)
            .map_err(|why| format!("has {pair:?}, which {why}")),
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
    let digits = word
        .strip_suffix(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(word);
    (1..=15).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit())
}

fn is_number(word: &str) -> bool {
    word.bytes().all(|b| b.is_ascii_digit()) && word.parse::<u32>().is_ok()
}
