use super::*;

#[test]
fn a_bad_option_is_named() {
    let e = io::Error::from_raw_os_error(libc::EINVAL);
    let words = explained(e, FsType::Ext4, "discard,no-such-thing=1").to_string();
    assert!(words.contains("no-such-thing"), "{words}");
    let e = io::Error::from_raw_os_error(libc::EINVAL);
    let untouched = explained(e, FsType::Ext4, "discard");
    assert_eq!(untouched.raw_os_error(), Some(libc::EINVAL));
}

#[test]
fn this_root_is_found_by_its_mount() {
    let root = Target::open(Path::new("/")).unwrap();
    let entry = entry_of(&root.0).unwrap().unwrap();
    assert_eq!(entry.mount_point, Path::new("/"));
}
