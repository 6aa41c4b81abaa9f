use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use super::*;

/// A new directory, and the path of a socket in it.
fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("csi.sock");
    (dir, path)
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn listens_for_the_owner_alone_and_goes_when_dropped() {
    let (dir, path) = place();
    let socket = Socket::bind(&path).unwrap();
    assert_eq!(names(dir.path()), ["csi.sock"], "the private name is gone");
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    UnixStream::connect(&path).unwrap();
    drop(socket);
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn a_stale_socket_is_replaced() {
    let (_dir, path) = place();
    let (listener, name) = Socket::bind(&path).unwrap().into_parts();
    drop(listener);
    std::mem::forget(name); // as if killed
    assert!(UnixStream::connect(&path).is_err());

    let (listener, _name) = Socket::bind(&path).unwrap().into_parts();
    let mut client = UnixStream::connect(&path).unwrap();
    drop(listener.accept().unwrap());
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_served_socket_is_refused_even_when_its_process_hangs() {
    let (dir, path) = place();
    let _serving = Socket::bind(&path).unwrap();
    let refused = Socket::bind(&path).unwrap_err();
    assert!(matches!(&refused, Error::Served(p) if *p == path), "{refused}");

    // No process accepts: fill the backlog until the kernel refuses connections.
    let mut waiting = Vec::new();
    loop {
        let fd = new_socket().unwrap();
        match connect(fd.as_raw_fd(), &UnixAddr::new(&path).unwrap()) {
            Ok(()) => waiting.push(fd),
            Err(Errno::EAGAIN) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(matches!(Socket::bind(&path), Err(Error::Served(_))));
    assert_eq!(names(dir.path()), ["csi.sock"]);
}

#[test]
fn a_file_that_is_not_a_socket_is_left_alone() {
    let (dir, path) = place();
    fs::write(&path, "data").unwrap();
    assert!(matches!(Socket::bind(&path), Err(Error::NotASocket(_))));
    assert_eq!(fs::read(&path).unwrap(), b"data");

    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(Socket::bind(&link), Err(Error::NotASocket(_))));
}

#[test]
fn the_socket_of_another_process_is_not_removed() {
    let (_dir, path) = place();
    let old = Socket::bind(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let _new = Socket::bind(&path).unwrap();
    drop(old);
    UnixStream::connect(&path).unwrap();
}

#[test]
fn paths_are_checked() {
    let (dir, _) = place();
    let base = dir.path().as_os_str().len();
    let long = |n: usize| dir.path().join("s".repeat(n - base - 1));
    assert_eq!(long(MAX_PATH).as_os_str().len(), MAX_PATH);
    // The longest name is served, although the private one is longer still.
    let longest = Socket::bind(&long(MAX_PATH)).unwrap();
    UnixStream::connect(long(MAX_PATH)).unwrap();
    drop(longest);
    let refused = Socket::bind(&long(MAX_PATH + 1)).unwrap_err().to_string();
    assert!(refused.contains("108 bytes") && refused.contains("at most 107"), "{refused}");

    for (path, why) in [("csi.sock", "not absolute"), ("/", "no file name")] {
        let refused = Socket::bind(Path::new(path)).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn the_directory_is_made_if_it_can_be() {
    let (dir, _) = place();
    let path = dir.path().join("plugins/hostloop/csi.sock");
    let _socket = Socket::bind(&path).unwrap();
    UnixStream::connect(&path).unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let refused = Socket::bind(&dir.path().join("file/csi.sock")).unwrap_err();
    assert!(refused.to_string().contains("Not a directory"), "{refused}");
}
