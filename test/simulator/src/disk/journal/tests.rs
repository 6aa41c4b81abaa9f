use rstest::rstest;

use super::*;

/// The length that a file has before it is written to.
const LEN: u64 = 8;

/// The directory of a path, and the name in it.
fn place<'p>(journal: &Journal, path: &'p str) -> (Inode, &'p str) {
    let (dirs, name) = path.rsplit_once('/').unwrap_or(("", path));
    let dirs = dirs.split('/').filter(|dir| !dir.is_empty());
    let dir = dirs.fold(ROOT, |above, dir| journal.find(above, dir).unwrap());
    (dir, name)
}

fn inode(journal: &Journal, path: &str) -> Inode {
    if path == "." {
        return ROOT;
    }
    let (dir, name) = place(journal, path);
    journal.find(dir, name).unwrap()
}

/// A filesystem after these operations.
fn journal(operations: &[&str]) -> Journal {
    let mut journal = Journal::new();
    for operation in operations {
        let (what, path) = operation.split_once(' ').unwrap();
        match what {
            "create" | "mkdir" => {
                let (dir, name) = place(&journal, path);
                journal.add(dir, name, what == "mkdir");
            }
            "unlink" => {
                let (dir, name) = place(&journal, path);
                journal.remove(dir, name);
            }
            "rename" => {
                let (from, to) = path.split_once(' ').unwrap();
                let places = (place(&journal, from), place(&journal, to));
                journal.rename(places.0, places.1);
            }
            "write" => journal.write(inode(&journal, path), LEN),
            "fsync" => {
                journal.sync(inode(&journal, path));
            }
            other => panic!("{other}"),
        }
    }
    journal
}

/// What each file may have, in words. A file has its number behind its name, so that it is known by
/// another one.
fn states_of(left: &Left) -> BTreeSet<String> {
    let mut paths = left.paths();
    paths.sort();
    let mut states = vec![Vec::new()];
    for (path, inode) in paths {
        let path = path.display();
        let possible: Vec<String> = match left.uncertain.get(&inode) {
            _ if left.is_dir(inode) => vec![format!("{path}/")],
            None => vec![format!("{path}#{inode}")],
            Some(arrived) => arrived
                .iter()
                .map(|one| match one {
                    Arrived::All => format!("{path}#{inode}"),
                    other => format!("{path}#{inode} {other}"),
                })
                .collect(),
        };
        states = states
            .iter()
            .flat_map(|before| {
                possible
                    .iter()
                    .map(move |one| [before.as_slice(), std::slice::from_ref(one)].concat())
            })
            .collect();
    }
    states.iter().map(|state| state.join(", ")).collect()
}

/// All states that a power cut may leave.
fn states(journal: &Journal) -> BTreeSet<String> {
    (0..=journal.pending())
        .flat_map(|kept| states_of(&journal.after(kept)))
        .collect()
}

const ANY_CONTENT: [&str; 5] = [
    "r#1",
    "r#1 is empty",
    "r#1 has zeros alone",
    "r#1 is cut off",
    "r#1 has zeros in its second half",
];
const NOTHING_OR_ANY_CONTENT: [&str; 6] = [
    "",
    "r#1",
    "r#1 is empty",
    "r#1 has zeros alone",
    "r#1 is cut off",
    "r#1 has zeros in its second half",
];

#[rstest]
#[case::nothing(&[], &[""])]
#[case::a_new_file_and_its_content(&["create r", "write r"], &NOTHING_OR_ANY_CONTENT)]
#[case::a_file_is_synced_with_its_name(&["create r", "write r", "fsync r"], &["r#1"])]
#[case::a_directory_is_synced_without_contents(&["create r", "fsync ."], &ANY_CONTENT)]
#[case::a_new_length(
    &["create r", "fsync r", "write r"],
    &["r#1", "r#1 has 8 bytes"],
)]
#[case::a_new_length_is_synced(
    &["create r", "fsync r", "write r", "fsync r"],
    &["r#1"],
)]
#[case::a_new_name(&["create n", "fsync n", "rename n r"], &["n#1", "r#1"])]
#[case::a_new_name_is_synced(&["create n", "fsync n", "rename n r", "fsync ."], &["r#1"])]
#[case::a_new_name_without_its_content(&["create n", "rename n r", "fsync ."], &ANY_CONTENT)]
#[case::old_or_new_content(
    &["create r", "fsync r", "create n", "fsync n", "rename n r"],
    &["n#2, r#1", "r#2"],
)]
#[case::new_content(
    &["create r", "fsync r", "create n", "fsync n", "rename n r", "fsync ."],
    &["r#2"],
)]
#[case::a_removal(&["create r", "fsync r", "unlink r"], &["r#1", ""])]
#[case::a_removal_is_synced(&["create r", "fsync r", "unlink r", "fsync ."], &[""])]
#[case::made_again(
    &["create r", "fsync r", "unlink r", "create r", "fsync r"],
    &["r#2"],
)]
#[case::changes_come_in_their_order(
    &["mkdir a", "mkdir b", "mkdir c", "fsync b"],
    &["a/, b/", "a/, b/, c/"],
)]
#[case::an_entry_appears_whole(
    &[
        "mkdir in", "mkdir to", "fsync .", "mkdir in/x", "create in/x/r", "fsync in/x/r",
        "fsync in/x", "rename in/x to/x",
    ],
    &["in/, in/x/, in/x/r#4, to/", "in/, to/, to/x/, to/x/r#4"],
)]
#[case::an_entry_is_synced_by_its_new_directory(
    &[
        "mkdir in", "mkdir to", "fsync .", "mkdir in/x", "create in/x/r", "fsync in/x/r",
        "rename in/x to/x", "fsync to",
    ],
    &["in/, to/, to/x/, to/x/r#4"],
)]
#[case::an_entry_is_removed_in_steps(
    &[
        "mkdir x", "create x/a", "create x/b", "fsync x/a", "fsync x/b", "unlink x/a",
        "unlink x/b", "unlink x",
    ],
    &["x/, x/a#2, x/b#3", "x/, x/b#3", "x/", ""],
)]
fn a_power_cut_leaves(#[case] operations: &[&str], #[case] expected: &[&str]) {
    let expected: BTreeSet<String> = expected.iter().map(|&one| one.to_owned()).collect();
    assert_eq!(states(&journal(operations)), expected);
}

#[rstest]
#[case::is_there(&["create r", "fsync r"], ".", &[])]
#[case::may_come_back(&["create r", "fsync r", "unlink r"], "other", &[])]
#[case::is_removed(&["create r", "fsync r", "unlink r"], ".", &[2])]
#[case::never_arrived(&["create r", "unlink r"], ".", &[2])]
#[case::is_replaced(&["create r", "create n", "rename n r"], ".", &[2])]
#[case::is_moved(&["create r", "rename r n"], ".", &[])]
fn what_is_gone_for_good(
    #[case] operations: &[&str],
    #[case] synced: &str,
    #[case] expected: &[Inode],
) {
    let before = ["create other", "fsync other"];
    let mut journal = journal(&[&before[..], operations].concat());
    let gone = journal.sync(inode(&journal, synced));
    assert_eq!(gone.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn nothing_is_lost_that_has_settled() {
    let mut journal = journal(&["mkdir x", "create x/r", "create s", "unlink s"]);
    journal.settle();
    assert_eq!(states(&journal), BTreeSet::from(["x/, x/r#2".to_owned()]));
    assert!(journal.after(0).lost.is_empty());
}
