use std::os::unix::ffi::OsStrExt;

use proptest::prelude::*;

use super::*;

const TABLE: &str = r"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:25 / /dev rw,nosuid - devtmpfs devtmpfs rw,size=4096k
81 22 7:3 / /a\040b rw,relatime - ext4 /dev/loop3 rw,errors=remount-ro
82 22 0:44 / /btr ro,relatime shared:5 master:1 propagate_from:2 - btrfs /dev/loop12 rw,subvol=/
83 22 0:25 /loop3 /block rw,nosuid - devtmpfs devtmpfs rw
84 22 0:50 / /liar rw - tmpfs /dev/loop3 rw
85 22 0:51 / /nameless rw - tmpfs  rw,size=1k
86 81 7:3 /sub\134dir /pod rw,ro - ext4 /dev/loop3 rw
87 22 7:3 / /a\040b rw - ext4 /dev/loop3 rw
";

#[test]
fn reads_what_the_kernel_writes() {
    let table = MountTable::parse(TABLE.as_bytes()).unwrap();
    let minors = table.entries.iter().map(|e| (e.id, e.loop_minor()));
    let minors: Vec<_> = minors.filter(|(_, minor)| minor.is_some()).collect();
    let expected = [(81, 3), (86, 3), (87, 3)];
    assert_eq!(minors, expected.map(|(id, minor)| (id, Some(minor))));
    let of_loop: Vec<_> = table.of_loop(3).map(|e| e.id).collect();
    assert_eq!(of_loop, [81, 86, 87]);
    let at = |path: &str| table.at(Path::new(path)).unwrap();
    assert_eq!(at("/a b").id, 87);
    assert_eq!(&*at("/nameless").source, "");
    assert_eq!(at("/nameless").super_options, "rw,size=1k".into());
    assert_eq!(at("/pod").root, Path::new(r"/sub\dir"));
    assert!(at("/pod").read_only() && !at("/block").read_only());
}

#[test]
fn a_shared_mount_is_one_of_a_group() {
    let table = [
        (22, true),
        (30, false),
        (82, true),
        (84, false),
        (99, false),
    ];
    for (id, expected) in table {
        assert_eq!(is_shared(TABLE.as_bytes(), id), expected, "{id}");
    }
    // A mount point may have the name of a tag, and a slave of others has none of its own.
    let text =
        b"1 2 0:3 / /shared:1 rw - tmpfs shared:1 rw\n2 0 0:3 / / rw master:1 - tmpfs a rw\n";
    assert!(!is_shared(text, 1) && !is_shared(text, 2));
}

/// `btrfs device scan` changes the source of a mounted filesystem to any text.
#[test]
fn a_btrfs_is_on_the_devices_that_the_kernel_names() {
    let mut entries = parse(TABLE.as_bytes()).unwrap();
    let btrfs = entries.iter().find(|e| e.is_btrfs()).unwrap();
    assert_eq!((&*btrfs.source, btrfs.loop_minor()), ("/dev/loop12", None));
    let unasked = MountTable::of(entries.clone());
    assert_eq!(
        unasked.of_any_loop().map(|e| e.id).collect::<Vec<_>>(),
        [82]
    );
    entries
        .iter_mut()
        .find(|e| e.is_btrfs())
        .unwrap()
        .btrfs_loops = Some(vec![5, 7]);
    let table = MountTable::of(entries);
    assert_eq!(table.of_any_loop().count(), 0);
    let of_loop = |minor| table.of_loop(minor).map(|e| e.id).collect::<Vec<_>>();
    assert_eq!(
        [3, 5, 7, 12].map(of_loop),
        [vec![81, 86, 87], vec![82], vec![82], vec![]]
    );
}

/// A pod may make device nodes on its own filesystem and have kubelet bind them.
#[test]
fn only_a_node_in_dev_itself_is_a_loop_devices_node() {
    let root = "22 1 254:0 / / rw - ext4 /dev/root rw";
    let own = "30 22 0:25 / /dev rw - devtmpfs devtmpfs rw";
    let folder = "30 22 0:25 /node/dev /dev rw - tmpfs tmpfs rw";
    let hidden = "29 22 0:24 / /dev rw - devtmpfs devtmpfs rw";
    let pods = "31 22 254:0 /var/lib /var/lib rw - ext4 /dev/root rw";
    let (plain, twice) = (&[root, own][..], &[root, hidden, own][..]);
    // A container's /dev may be a folder of another filesystem. Without a mount there, it is a
    // folder of the root filesystem.
    let (folder, none) = (&[root, folder][..], &[root][..]);
    // Earlier mounts; device, root and filesystem of the mount; the expected minor of its node.
    for (before, file, fs, node) in [
        (plain, "0:25 /loop5", "devtmpfs", Some(5)),
        (plain, "0:25 /loop5//deleted", "devtmpfs", Some(5)),
        (plain, "0:25 /loop05", "devtmpfs", None),
        (plain, "0:25 /loop-control", "devtmpfs", None),
        (plain, "0:25 /shm/loop5", "devtmpfs", None),
        (plain, "0:26 /loop5", "tmpfs", None),
        (&[root, own, pods], "254:0 /var/lib/pod/loop5", "ext4", None),
        (plain, "7:3 /loop5", "ext4", None),
        (twice, "0:25 /loop5", "devtmpfs", Some(5)),
        (twice, "0:24 /loop5", "devtmpfs", None),
        (folder, "0:25 /node/dev/loop5", "tmpfs", Some(5)),
        (folder, "0:25 /loop5", "tmpfs", None),
        (none, "254:0 /dev/loop5", "ext4", Some(5)),
        (none, "254:0 /dev/loop5//deleted", "ext4", Some(5)),
        (none, "254:0 /var/dev/loop5", "ext4", None),
        (none, "254:0 /loop5", "ext4", None),
    ] {
        let text = format!(
            "{}\n40 22 {file} /t rw - {fs} source rw\n",
            before.join("\n")
        );
        let table = MountTable::parse(text.as_bytes()).unwrap();
        assert_eq!(table.at(Path::new("/t")).unwrap().loop_node, node, "{text}");
        let bound = table.of_loop_node(5).count();
        assert_eq!(bound, usize::from(node.is_some()), "{text}");
    }
}

#[test]
fn names_a_bad_line() {
    for line in [
        "x",
        "1 2 3 / / rw - a b c",
        "1 2 3:4 / / rw a b c",
        "-1 2 3:4 / / rw - a b",
    ] {
        let message = MountTable::parse(line.as_bytes()).unwrap_err();
        assert!(message.contains(line), "{message}");
    }
}

#[test]
fn loop_names() {
    for (path, minor) in [
        ("/dev/loop0", Some(0)),
        ("/dev/loop1048575", Some(1_048_575)),
        ("/dev/loop", None),
        ("/dev/loop+1", None),
        ("/dev/loop01", None),
        ("/dev/loop1p1", None),
        ("/dev/loop-control", None),
        ("/dev/loop4294967296", None),
    ] {
        assert_eq!(loop_name(path), minor, "{path}");
    }
}

/// The kernel's escapes: space, TAB, LF, backslash, and `#`.
fn escape(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, &b| {
        match b {
            b' ' | b'\t' | b'\n' | b'\\' | b'#' | 0x80.. => out.push_str(&format!("\\{b:03o}")),
            _ => out.push(b as char),
        }
        out
    })
}

proptest! {
    #[test]
    fn paths_come_back(path in proptest::collection::vec(1u8.., 1..60)) {
        let line = format!("1 0 7:9 / /{} rw - ext4 /dev/loop9 rw\n", escape(&path));
        let table = MountTable::parse(line.as_bytes()).unwrap();
        let entry = table.entries.iter().next().unwrap();
        prop_assert_eq!(&entry.mount_point.as_os_str().as_bytes()[1..], &path[..]);
    }
}
