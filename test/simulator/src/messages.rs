//! Words of messages of hostloop and Kubernetes that more than one rule looks for, and numbers in
//! messages. The words of advice are in `oracle/remedies.rs`.

/// What precedes the size that a source needs.
pub(crate) const LEAST: &str = "needs at least ";

/// Words of a call that waits for a thread of the driver, and for one that is not for copies.
const WAITS: &str = "the call waits for";
const WAITS_FOR_CHANGES: &str = "the call waits for the changes in its pool";
/// Words about a lack of space, of nodes and of Kubernetes.
const NO_ROOM: [&str; 3] = ["room", FULL, "enough free storage"];
/// The driver's answer to a call for which a disk lacks space.
const FULL: &str = "ResourceExhausted";

/// What a process says of a call that it can't make.
const NO_DRIVER: &str = "this process has no CSI driver";

/// What the driver says of a volume that it can't freeze.
const IN_RAW_USE: &str = " is in use as a raw block device";

/// Words before the numbers in the refusal of a snapshot that is too much for its namespace.
const OF_SNAPSHOT_LIMIT: [&str; 3] = [" promise ", " on this node, and ", " its limit of "];

/// Words before the numbers of a pool that lacks room for a request.
const OF_LACKING_ROOM: [&str; 2] = [" has no room for ", ": it can promise "];

/// True if a process speaks of a call that it can't make.
pub(crate) fn lacks_driver(message: &str) -> bool {
    message.contains(NO_DRIVER)
}

/// True if a call waits for a thread of the driver.
pub(crate) fn waits_for_thread(message: &str) -> bool {
    message.contains(WAITS)
}

/// True if a call waits for a thread that is not for copies.
pub(crate) fn waits_for_changes(message: &str) -> bool {
    message.contains(WAITS_FOR_CHANGES)
}

/// True if something lacks space.
pub(crate) fn lacks_room(message: &str) -> bool {
    NO_ROOM.iter().any(|words| message.contains(words))
}

/// True if the driver has answered that a disk lacks space.
pub(crate) fn is_full(message: &str) -> bool {
    message.contains(FULL)
}

/// True if a snapshot, group or copy is refused for the use of a volume as a raw block device.
pub(crate) fn is_about_raw_use(message: &str) -> bool {
    message.contains(IN_RAW_USE)
}

/// The handle of a volume that is in use so, or another word if the message names none.
pub(crate) fn in_raw_use(message: &str) -> Option<&str> {
    let (before, _) = message.split_once(IN_RAW_USE)?;
    before.rsplit(' ').next()
}

/// The numbers in the refusal of a snapshot that is too much for its namespace, in bytes: what all its
/// snapshots promise, what this one would, and the limit.
pub(crate) fn snapshot_limit(message: &str) -> Option<[u64; 3]> {
    let [used, more, limit] = OF_SNAPSHOT_LIMIT.map(|words| bytes_after(message, words));
    Some([used?, more?, limit?])
}

/// The numbers of a pool that lacks room for a request, in bytes: what is requested, and what the pool
/// can promise.
pub(crate) fn lacking_room(message: &str) -> Option<[u64; 2]> {
    let [requested, left] = OF_LACKING_ROOM.map(|words| bytes_after(message, words));
    Some([requested?, left?])
}

/// The first number of bytes after these words: of `7 bytes`, and of `1.50 GiB (1610612736 bytes)`.
fn bytes_after(message: &str, words: &str) -> Option<u64> {
    let (_, rest) = message.split_once(words)?;
    let (number, _) = rest.split_once(" bytes")?;
    let digits = number.rsplit(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// True if a copy is to be smaller than its source.
pub(crate) fn is_too_small(message: &str) -> bool {
    message.contains(LEAST) || message.contains("smaller")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_a_limit_are_found() {
        let refusal = "ResourceExhausted: the snapshots of namespace \"u\" promise 0 bytes on this \
                       node, and 4.00 KiB (4096 bytes) more would exceed its limit of 5 bytes \
                       (--max-snapshot-bytes-per-namespace): delete some";
        assert_eq!(snapshot_limit(refusal), Some([0, 4096, 5]));
        assert_eq!(
            snapshot_limit("ResourceExhausted: no room for 4096 bytes"),
            None
        );
    }

    #[test]
    fn words_of_messages_are_found() {
        type Rule = fn(&str) -> bool;
        let changes = "the call waits for the changes in its pool that came before it";
        let cases: [(Rule, &str, bool); 12] = [
            (
                lacks_driver,
                "ListSnapshots: Unavailable: this process has no CSI driver",
                true,
            ),
            (lacks_driver, "code = Unavailable", false),
            (waits_for_thread, changes, true),
            (waits_for_changes, changes, true),
            (waits_for_thread, "the call waits for copies", true),
            (waits_for_changes, "the call waits for copies", false),
            (lacks_room, "no node has room for 1Ti", true),
            (lacks_room, "code = Unavailable", false),
            (is_full, "code = ResourceExhausted desc = no space", true),
            (is_full, "no node has room for 1Ti", false),
            (
                is_too_small,
                "VolumeSnapshot u/s1 needs at least 10Mi",
                true,
            ),
            (is_too_small, "no node has room for 1Ti", false),
        ];
        for (rule, message, expected) in cases {
            assert_eq!(rule(message), expected, "{message}");
        }
    }
}
