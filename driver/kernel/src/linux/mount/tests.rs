use super::*;

#[test]
fn this_root_is_found_by_its_mount() {
    let root = PinnedTarget::open(Path::new("/")).unwrap();
    let entry = entry_of(&root.0).unwrap().unwrap();
    assert_eq!(entry.mount_point, Path::new("/"));
}
