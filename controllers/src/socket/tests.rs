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

fn bind_here(path: &Path) -> Result<Socket, Error> {
    Socket::bind(path, &fs::DirBuilder::new())
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn listens_for_the_owner_alone_and_goes_when_dropped() {
    let (dir, path) = place();
    let socket = bind_here(&path).unwrap();
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
    let Socket { listener, name } = bind_here(&path).unwrap();
    drop(listener);
    std::mem::forget(name); // as if killed
    assert!(UnixStream::connect(&path).is_err());

    let Socket {
        listener,
        name: _name,
    } = bind_here(&path).unwrap();
    let mut client = UnixStream::connect(&path).unwrap();
    drop(listener.accept().unwrap());
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_served_socket_is_refused_even_when_its_process_hangs() {
    let (dir, path) = place();
    let _serving = bind_here(&path).unwrap();
    let refused = bind_here(&path).unwrap_err();
    assert!(
        matches!(&refused, Error::Served(p) if *p == path),
        "{refused}"
    );

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
    assert!(matches!(bind_here(&path), Err(Error::Served(_))));
    assert_eq!(names(dir.path()), ["csi.sock"]);
}

#[test]
fn a_file_that_is_not_a_socket_is_left_alone() {
    let (dir, path) = place();
    fs::write(&path, "data").unwrap();
    assert!(matches!(bind_here(&path), Err(Error::NotASocket(_))));
    assert_eq!(fs::read(&path).unwrap(), b"data");

    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(bind_here(&link), Err(Error::NotASocket(_))));
}

#[test]
fn the_socket_of_another_process_is_not_removed() {
    let (_dir, path) = place();
    let old = bind_here(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let new = bind_here(&path).unwrap();
    assert!(!old.name.is_there() && new.name.is_there());
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
    let longest = bind_here(&long(MAX_PATH)).unwrap();
    UnixStream::connect(long(MAX_PATH)).unwrap();
    drop(longest);
    let refused = bind_here(&long(MAX_PATH + 1)).unwrap_err().to_string();
    assert!(
        refused.contains("108 bytes") && refused.contains("at most 107"),
        "{refused}"
    );

    for (path, why) in [("csi.sock", "not absolute"), ("/", "no file name")] {
        let refused = bind_here(Path::new(path)).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn directories_are_made_as_the_builder_says() {
    let (dir, _) = place();
    let path = dir.path().join("plugins/hostloop/csi.sock");
    let error = bind_here(&path).unwrap_err();
    assert!(matches!(error, Error::Io { op: "mkdir", .. }), "{error}");
    let above = dir.path().join("registry/csi.sock");
    drop(bind_here(&above).unwrap());
    let _socket = Socket::bind(&path, fs::DirBuilder::new().recursive(true)).unwrap();
    UnixStream::connect(&path).unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let refused = bind_here(&dir.path().join("file/csi.sock")).unwrap_err();
    assert!(refused.to_string().contains("Not a directory"), "{refused}");
}
