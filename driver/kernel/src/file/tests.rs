use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::sync::Arc;

use rstest::rstest;

use super::copy::{COPY_STEP, copy_step};
use super::*;
use crate::foreground::{self, Foreground};

fn dir() -> (tempfile::TempDir, File) {
    let temporary = tempfile::tempdir().unwrap();
    let handle = File::open(temporary.path()).unwrap();
    (temporary, handle)
}

/// Creates a file beneath a directory.
fn create(dir: &File, name: &str) -> File {
    create_beneath(dir.as_fd(), Path::new(name)).unwrap()
}

fn errno(e: Error) -> Option<i32> {
    match e {
        Error::Io { source, .. } => source.raw_os_error(),
        _ => None,
    }
}

#[test]
fn copies_keep_holes_and_length() {
    let (_t, d) = dir();
    let from = create(&d, "from");
    from.set_len(64 << 20).unwrap();
    from.write_all_at(&[7; 4096], 8 << 20).unwrap();
    from.write_all_at(&[9; 100], (32 << 20) + 1000).unwrap();
    let to = create(&d, "to");
    let copied = copy_sparse(&from, &to, Pace::Gentle, &|| false).unwrap();
    assert!((4196..1 << 20).contains(&copied), "{copied}");
    assert_eq!(to.metadata().unwrap().len(), 64 << 20);
    assert!(allocated_bytes(&to).unwrap() < 1 << 20);
    for (at, want) in [(8 << 20, 7), ((32 << 20) + 1000, 9), (1 << 20, 0)] {
        let mut byte = [1];
        to.read_exact_at(&mut byte, at).unwrap();
        assert_eq!(byte, [want], "at {at}");
    }
}

#[test]
fn a_file_has_no_name_before_it_is_given_one() {
    let (t, d) = dir();
    let made = create_nameless(d.as_fd()).unwrap();
    assert_eq!(std::fs::read_dir(t.path()).unwrap().count(), 0);
    give_name(&made, d.as_fd(), "name").unwrap();
    let named = t.path().join("name").metadata().unwrap();
    assert_eq!(named.ino(), made.metadata().unwrap().ino());
    let other = create_nameless(d.as_fd()).unwrap();
    let taken = give_name(&other, d.as_fd(), "name").unwrap_err();
    assert_eq!(errno(taken), Some(libc::EEXIST));
    give_name(&other, d.as_fd(), "../name").unwrap_err();
}

#[test]
fn a_copy_stops_on_request() {
    let (_t, d) = dir();
    let from = create(&d, "from");
    from.write_all_at(&vec![1; 9 << 20], 0).unwrap();
    let to = create(&d, "to");
    let stopped = copy_sparse(&from, &to, Pace::Gentle, &|| true).unwrap_err();
    assert!(
        matches!(stopped, Error::Stopped { copied, .. } if copied == COPY_STEP),
        "{stopped:?}"
    );
}

#[test]
fn both_ways_to_copy_agree() {
    let (_t, d) = dir();
    let from = create(&d, "from");
    let content: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    from.write_all_at(&content, 0).unwrap();
    for mut by_kernel in [true, false] {
        let to = create(&d, &format!("to-{by_kernel}"));
        let mut at = 0;
        while at < 300_000 {
            at += copy_step(&from, &to, at, 70_000, &mut by_kernel).unwrap();
        }
        let mut read = vec![0; content.len()];
        to.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(read, content);
    }
}

#[test]
fn allocates_and_sets_lengths() {
    let (_t, d) = dir();
    let file = create(&d, "image");
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
    set_len(&file, 4 << 20).unwrap();
    assert_eq!(allocated_bytes(&file).unwrap(), 0);
    allocate(&file, 0..2 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 4 << 20);
    assert!(allocated_bytes(&file).unwrap() >= 2 << 20);
    sync(&file, Path::new("image")).unwrap();
    let again = create_beneath(d.as_fd(), Path::new("image")).unwrap_err();
    assert_eq!(errno(again), Some(libc::EEXIST));
}

#[rstest]
#[case::a_single_step(4096, false)]
#[case::two_steps(8192, true)]
fn an_allocation_gives_way_between_its_steps(#[case] len: u64, #[case] expected: bool) {
    let (_t, d) = dir();
    let file = create(&d, "image");
    let pool = Arc::new(Foreground::default());
    let _call = pool.enter();
    let wanted = Arc::new(wanted::Wanted::with_step(|| {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }));
    let before = foreground::paused();
    wanted
        .run(|| foreground::behind(vec![pool], || allocate_in_steps(&file, 0..len, 4096)))
        .unwrap();
    assert_eq!(foreground::paused() > before, expected);
    assert_eq!(length(&file).unwrap(), len);
}

#[test]
fn stays_beneath() {
    let (t, d) = dir();
    std::fs::create_dir(t.path().join("sub")).unwrap();
    std::fs::write(t.path().join("sub/file"), "x").unwrap();
    symlink("sub", t.path().join("link")).unwrap();
    symlink("/etc/passwd", t.path().join("out")).unwrap();
    let open = |path: &str| open_beneath(d.as_fd(), Path::new(path), OFlags::RDONLY);
    assert!(open("sub/file").is_ok());
    assert!(matches!(open("nothing"), Err(Error::NotFound { .. })));
    for path in ["link/file", "out", "../x", "/etc/passwd", "sub/../../x"] {
        assert!(open(path).is_err(), "{path}");
    }
    for name in ["", ".", "..", "a/b", "a\0b"] {
        assert!(make_dir(d.as_fd(), name).is_err(), "{name:?}");
        assert!(replace(d.as_fd(), name, b"").is_err(), "{name:?}");
        assert!(remove_entry(d.as_fd(), name).is_err(), "{name:?}");
    }
}

#[test]
fn replaces_whole() {
    let (t, d) = dir();
    for content in ["one", "two, which is longer", "3"] {
        replace(d.as_fd(), "record", content.as_bytes()).unwrap();
        let read = std::fs::read_to_string(t.path().join("record")).unwrap();
        assert_eq!(read, content);
    }
    // A temporary file from a crash is overwritten, not appended to.
    std::fs::write(t.path().join(".record.new"), "rubbish left by a crash").unwrap();
    replace(d.as_fd(), "record", b"4").unwrap();
    assert_eq!(std::fs::read(t.path().join("record")).unwrap(), b"4");
    assert_eq!(list(d.as_fd()).unwrap(), ["record"]);
}

#[test]
fn a_failed_replacement_leaves_nothing() {
    let (t, d) = dir();
    std::fs::create_dir(t.path().join("record")).unwrap();
    assert!(replace(d.as_fd(), "record", b"x").is_err());
    assert_eq!(list(d.as_fd()).unwrap(), ["record"]);
}

#[test]
fn concurrent_replacements_take_turns() {
    let (t, d) = dir();
    std::thread::scope(|scope| {
        for byte in b'a'..b'e' {
            let d = &d;
            scope.spawn(move || {
                for _ in 0..20 {
                    replace(d.as_fd(), "record", &vec![byte; 5000]).unwrap();
                }
            });
        }
    });
    let read = std::fs::read(t.path().join("record")).unwrap();
    assert_eq!(read.len(), 5000);
    assert!(read.iter().all(|b| *b == read[0]));
    assert_eq!(list(d.as_fd()).unwrap(), ["record"]);
}

#[test]
fn makes_renames_and_removes() {
    let (t, d) = dir();
    for name in ["in", "in", "done"] {
        make_dir(d.as_fd(), name).unwrap();
    }
    let (from, to) = (
        open_beneath(d.as_fd(), Path::new("in"), OFlags::PATH).unwrap(),
        open_beneath(d.as_fd(), Path::new("done"), OFlags::PATH).unwrap(),
    );
    make_dir(from.as_fd(), "v").unwrap();
    std::fs::write(t.path().join("in/v/image"), "x").unwrap();
    symlink("/etc/passwd", t.path().join("in/v/link")).unwrap();
    rename(from.as_fd(), "v", to.as_fd(), "v").unwrap();
    make_dir(from.as_fd(), "v").unwrap();
    let taken = rename(from.as_fd(), "v", to.as_fd(), "v").unwrap_err();
    assert_eq!(errno(taken), Some(libc::EEXIST));
    remove_entry(to.as_fd(), "v").unwrap();
    assert!(Path::new("/etc/passwd").exists());
    assert!(list(to.as_fd()).unwrap().is_empty());
    assert!(!t.path().join("done/v").exists());

    std::fs::create_dir_all(t.path().join("done/deep/er")).unwrap();
    std::fs::write(t.path().join("done/deep/er/file"), "x").unwrap();
    assert!(remove_entry(to.as_fd(), "deep").is_err());
    assert!(t.path().join("done/deep/er/file").exists());

    std::fs::write(t.path().join("file"), "x").unwrap();
    assert!(make_dir(d.as_fd(), "file").is_err());
    symlink("in", t.path().join("link")).unwrap();
    for stray in ["file", "link"] {
        remove_entry(d.as_fd(), stray).unwrap();
    }
    let absent = remove_entry(d.as_fd(), "file").unwrap_err();
    assert!(matches!(absent, Error::NotFound { .. }), "{absent:?}");
    assert_eq!(list(d.as_fd()).unwrap(), ["done", "in"]);
}

#[test]
fn errors_name_the_file() {
    let (t, d) = dir();
    let path = t.path().join("readonly");
    std::fs::write(&path, "x").unwrap();
    let file = open_beneath(d.as_fd(), Path::new("readonly"), OFlags::RDONLY).unwrap();
    let message = set_len(&file, 9).unwrap_err().to_string();
    assert!(message.contains(path.to_str().unwrap()), "{message}");
}

/// The errors of the first calls, the calls in all, and whether the data must be copied.
#[rstest]
#[case::at_once(&[], 1, None)]
#[case::dirty_once(&[libc::EAGAIN], 2, None)]
#[case::dirty_for_long(&[libc::EAGAIN; 3], 3, Some(true))]
#[case::no_reflinks(&[libc::EOPNOTSUPP], 1, Some(true))]
#[case::no_such_call(&[libc::ENOTTY], 1, Some(true))]
#[case::other_filesystem(&[libc::EXDEV], 1, Some(true))]
#[case::cow_against_nocow(&[libc::EINVAL], 1, Some(true))]
#[case::not_on_the_server_of_nfs(&[524], 1, Some(true))]
#[case::full(&[libc::ENOSPC], 1, Some(false))]
#[case::broken(&[libc::EIO], 1, Some(false))]
#[case::broken_when_written(&[libc::EAGAIN, libc::EIO], 2, Some(false))]
fn what_follows_a_failed_clone(
    #[case] errors: &[i32],
    #[case] calls: usize,
    #[case] copies: Option<bool>,
) {
    let (_t, d) = dir();
    let (from, to) = (create(&d, "from"), create(&d, "to"));
    let called = std::cell::Cell::new(0);
    let result = cloned(&from, &to, "FICLONE", || {
        let errno = errors.get(called.replace(called.get() + 1));
        errno.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(*errno)))
    });
    assert_eq!(called.get(), calls);
    let copied = result
        .err()
        .map(|error| is_too_new(&error) || matches!(error, Error::Unsupported { .. }));
    assert_eq!(copied, copies);
}

/// The call itself can't be stopped, so it does not begin.
#[test]
fn a_clone_that_nobody_wants_does_not_begin() {
    let (_t, d) = dir();
    let (from, to) = (create(&d, "from"), create(&d, "to"));
    let unwanted = std::sync::Arc::new(wanted::Wanted::default());
    unwanted.end();
    let result = unwanted.run(|| cloned(&from, &to, "FICLONE", || panic!("it has begun")));
    assert!(matches!(result, Err(Error::Unwanted { .. })), "{result:?}");
}

#[test]
fn an_allocation_that_nobody_wants_ends() {
    let (_t, d) = dir();
    let file = create(&d, "image");
    let unwanted = std::sync::Arc::new(wanted::Wanted::default());
    unwanted.end();
    let result = unwanted.run(|| allocate(&file, 0..2 << 20));
    assert!(matches!(result, Err(Error::Unwanted { .. })), "{result:?}");
    assert_eq!(allocated_bytes(&file).unwrap(), 0);
}
