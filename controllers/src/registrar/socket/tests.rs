use std::os::unix::net::UnixListener as BlockingListener;

use tempfile::TempDir;

use super::*;

#[tokio::test]
async fn a_stale_socket_is_replaced() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a-reg.sock");
    drop(BlockingListener::bind(&path).unwrap());
    let bound = Bound::new(&path).await.unwrap();
    assert!(bound.name().is_there());
    UnixStream::connect(&path).await.unwrap();
    drop(bound);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn what_is_in_use_or_no_socket_is_left_alone() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a-reg.sock");
    let other = BlockingListener::bind(&path).unwrap();
    assert!(matches!(Bound::new(&path).await, Err(Error::Served(_))));
    drop(other);
    fs::remove_file(&path).unwrap();
    fs::write(&path, "notes").unwrap();
    assert!(matches!(Bound::new(&path).await, Err(Error::NotASocket(_))));
    assert_eq!(fs::read_to_string(&path).unwrap(), "notes");
}

#[tokio::test]
async fn only_its_own_file_goes_with_it() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a-reg.sock");
    let first = Bound::new(&path).await.unwrap();
    fs::remove_file(&path).unwrap();
    let second = Bound::new(&path).await.unwrap();
    assert!(!first.name().is_there());
    drop(first);
    assert!(second.name().is_there());
}

#[tokio::test]
async fn a_path_is_as_long_as_the_kernel_takes() {
    let dir = TempDir::new().unwrap();
    let room = MAX_PATH - dir.path().as_os_str().len() - 1;
    let longest = dir.path().join("a".repeat(room));
    drop(Bound::new(&longest).await.unwrap());
    let too_long = dir.path().join("a".repeat(room + 1));
    let error = Bound::new(&too_long).await.unwrap_err().to_string();
    assert!(error.contains("has 108 bytes, and a Unix socket's path at most 107"), "{error}");
    assert!(matches!(Bound::new(Path::new("a-reg.sock")).await, Err(Error::Path { .. })));
}

#[tokio::test]
async fn a_directory_is_made_but_none_above_it() {
    let dir = TempDir::new().unwrap();
    drop(Bound::new(&dir.path().join("registry/a-reg.sock")).await.unwrap());
    let error = Bound::new(&dir.path().join("not/here/a-reg.sock")).await.unwrap_err();
    assert!(matches!(error, Error::Io { op: "mkdir", .. }), "{error}");
}
