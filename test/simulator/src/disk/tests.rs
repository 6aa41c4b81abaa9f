use std::collections::BTreeSet;
use std::os::fd::AsFd;

use hostloop_driver::kernel::file;

use super::*;

/// Does something in a pool that has a file `old`, and cuts the power. Returns what 200 such pools
/// have then, as the names and contents of their files.
fn states(node: &'static str, work: fn(&File)) -> BTreeSet<String> {
    begin();
    let states = (0..200).map(|seed| {
        let temporary = tempfile::tempdir().unwrap();
        let pool = temporary.path().join("pool");
        std::fs::create_dir(&pool).unwrap();
        std::fs::write(pool.join("old"), "1234").unwrap();
        let dir = File::open(&pool).unwrap();
        insert(node, &pool, &temporary.path().join("names")).unwrap();
        work(&dir);
        let before = content(&pool);
        let lost = cut(node, &mut Dice::of(seed, "cut", 1)).unwrap();
        let after = content(&pool);
        assert!(before == after || !lost.is_empty(), "{before}: {after}");
        // What is left is the disk of another power cut.
        let again = cut(node, &mut Dice::of(seed, "cut", 2)).unwrap();
        assert!(again.is_empty(), "{again:?}");
        assert_eq!(content(&pool), after);
        DISKS.lock().remove(node);
        after
    });
    states.collect()
}

/// The files in a directory, each with its content.
fn content(dir: &Path) -> String {
    let handle = File::open(dir).unwrap();
    let files = file::list(handle.as_fd()).unwrap().into_iter().map(|name| {
        let path = dir.join(&name);
        if path.is_dir() {
            return format!("{name}/ {}", content(&path));
        }
        let bytes = std::fs::read(&path).unwrap();
        format!("{name} {}", bytes.escape_ascii())
    });
    files.collect::<Vec<_>>().join(", ")
}

fn set(states: &[&str]) -> BTreeSet<String> {
    states.iter().map(|&state| state.to_owned()).collect()
}

#[test]
fn a_replaced_file_is_there_and_an_unsynced_one_may_be_anything() {
    let found = states("replaced", |dir| {
        file::replace(dir.as_fd(), "old", b"abcd").unwrap();
    });
    assert_eq!(found, set(&["old abcd"]));
    let found = states("unsynced", |dir| {
        file::replace_unsynced(dir.as_fd(), "new", b"abcd").unwrap();
    });
    let mut expected = BTreeSet::new();
    for content in ["abcd", "", "\\x00\\x00\\x00\\x00", "ab", "ab\\x00\\x00"] {
        expected.insert(format!("new {content}, old 1234"));
        expected.insert(format!(".new.new {content}, old 1234"));
    }
    expected.insert("old 1234".to_owned());
    assert_eq!(found, expected);
}

#[test]
fn a_removal_and_a_new_length_may_be_lost() {
    let found = states("removed", |dir| file::remove(dir.as_fd(), "old").unwrap());
    assert_eq!(found, set(&["", "old 1234"]));
    let found = states("longer", |dir| {
        let old = file::name_of(dir).join("old");
        let old = File::options().write(true).open(old).unwrap();
        file::set_len(&old, 6).unwrap();
    });
    assert_eq!(found, set(&["old 1234", "old 1234\\x00\\x00"]));
}

#[test]
fn an_entry_is_made_and_removed_in_steps() {
    let found = states("entry", |dir| {
        file::make_dir(dir.as_fd(), "a").unwrap();
        let entry = File::open(file::name_of(dir).join("a")).unwrap();
        let record = file::write_new(entry.as_fd(), "r", b"x").unwrap();
        file::sync(&record, Path::new("r")).unwrap();
        file::rename(dir.as_fd(), "a", dir.as_fd(), "b").unwrap();
        file::sync(dir, Path::new("pool")).unwrap();
        file::remove_entry(dir.as_fd(), "b").unwrap();
    });
    assert_eq!(
        found,
        set(&["b/ r x, old 1234", "b/ , old 1234", "old 1234"])
    );
}
