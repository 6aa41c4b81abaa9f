use hostloop_fake_kernel::Model;
use tempfile::TempDir;

use super::*;
use crate::kernel::{LoopDevices, Mounts};
use crate::reach::testing;

const NONCE: &str = "0123456789abcdef0123456789abcdef";

fn marker(kernel: &str, node: &str) -> Marker {
    Marker {
        kernel: kernel.to_owned(),
        node: node.to_owned(),
        nonce: NONCE.to_owned(),
    }
}

#[test]
fn a_marker_is_read_from_its_path_alone() {
    let of_node = || Some(marker("k", "n-1.example"));
    let name = of_node().unwrap().file_name();
    assert_eq!(name, format!("marker,k,n-1.example,{NONCE}"));
    let table = [
        (format!("/var/lib/kubelet/state/kernel/{name}"), of_node()),
        // As another mount namespace shows it, and after the end of its own one.
        (format!("/{name}"), of_node()),
        (name.clone(), of_node()),
        (format!("/state/{name} (deleted)"), None),
        (format!("/{name}/image"), None),
        (format!("/{name}x"), None),
        (format!("/x{name}"), None),
        (format!("/{name},a"), None),
        (format!("/marker,k,{NONCE}"), None),
        (format!("/marker,,n,{NONCE}"), None),
        (format!("/marker,k,,{NONCE}"), None),
        (format!("/marker,K,n,{NONCE}"), None),
        (format!("/marker,k,n o,{NONCE}"), None),
        (format!("/marker,k,n,{}", NONCE.to_uppercase()), None),
        (format!("/marker,k,n,{}", &NONCE[1..]), None),
        (String::new(), None),
    ];
    for (path, expected) in table {
        assert_eq!(Marker::read(&path), expected, "{path}");
    }
}

#[test]
fn only_a_read_only_device_that_ends_with_its_use_is_a_marker() {
    let device = |read_only, autoclear, backing_rdev| LoopInfo {
        backing_path: format!("/state/{}", marker("k", "n").file_name()),
        read_only,
        autoclear,
        backing_rdev,
        ..LoopInfo::default()
    };
    for (device, expected) in [
        (device(true, true, 0), true),
        (device(false, true, 0), false),
        (device(true, false, 0), false),
        (device(true, true, 0x700), false),
    ] {
        assert_eq!(of(&device).is_some(), expected, "{device:?}");
        let loops = [device];
        assert_eq!(all(&loops).len(), usize::from(expected));
        assert_eq!(seen(&loops, "k").len(), usize::from(expected));
        assert_eq!(seen(&loops, "another"), []);
    }
}

fn state() -> (Model, TempDir) {
    (Model::new(), tempfile::tempdir().unwrap())
}

fn files(state: &TempDir) -> usize {
    let dir = state.path().join(DIRECTORY);
    std::fs::read_dir(dir).unwrap().count() - 1
}

#[test]
fn a_marker_stays_as_long_as_its_mount() {
    let (kernel, state) = state();
    let first = keep(&kernel, state.path(), "k", "n").unwrap();
    assert_eq!((&*first.kernel, &*first.node), ("k", "n"));
    assert_eq!(
        seen(&kernel.loops().unwrap(), "k"),
        std::slice::from_ref(&first)
    );
    assert_eq!(keep(&kernel, state.path(), "k", "n").unwrap(), first);
    // Another node of the kernel, and its file elsewhere.
    let other = tempfile::tempdir().unwrap();
    let second = keep(&kernel, other.path(), "k", "m").unwrap();
    let mut both = seen(&kernel.loops().unwrap(), "k");
    both.sort();
    assert_eq!(both, [second.clone(), first.clone()]);
    // The node's container ends.
    let alive = state.path().join(DIRECTORY).join(ALIVE);
    kernel.unmount(&alive.canonicalize().unwrap()).unwrap();
    assert_eq!(seen(&kernel.loops().unwrap(), "k"), [second]);
    let again = keep(&kernel, state.path(), "k", "n").unwrap();
    assert_ne!(again.nonce, first.nonce);
    assert_eq!(files(&state), 1);
    assert_eq!(
        own_nonces(state.path()).unwrap(),
        BTreeSet::from([again.nonce])
    );
}

/// Volumes are pinned by the marker with the old name. Not all nodes learn the new one at once.
#[test]
fn a_kernel_with_a_new_name_keeps_the_old_marker() {
    let (kernel, state) = state();
    let old = keep(&kernel, state.path(), "k", "n").unwrap();
    let new = keep(&kernel, state.path(), "l", "n").unwrap();
    let loops = kernel.loops().unwrap();
    assert_eq!(seen(&loops, "k"), [old]);
    assert_eq!(seen(&loops, "l"), std::slice::from_ref(&new));
    assert_eq!(all(&loops).len(), 2);
    assert_eq!(files(&state), 2);
    assert_eq!(keep(&kernel, state.path(), "l", "n").unwrap(), new);
}

#[test]
fn a_marker_that_only_the_pod_would_see_is_not_made() {
    let (kernel, state) = state();
    kernel.set_private(true);
    let error = keep(&kernel, state.path(), "k", "n").unwrap_err();
    assert!(error.to_string().contains("Bidirectional"), "{error}");
    assert_eq!(kernel.loops().unwrap(), []);
    kernel.set_private(false);
    let made = keep(&kernel, state.path(), "k", "n").unwrap();
    // One that is there is of the node.
    kernel.set_private(true);
    assert_eq!(keep(&kernel, state.path(), "k", "n").unwrap(), made);
}

#[test]
fn what_fails_leaves_no_marker_and_is_tried_again() {
    for op in ["mkfs", "loop.attach", "mount"] {
        let (kernel, state) = state();
        kernel.fail(op, 1, libc::EIO);
        assert!(keep(&kernel, state.path(), "k", "n").is_err(), "{op}");
        assert_eq!(all(&kernel.loops().unwrap()), [], "{op}");
        keep(&kernel, state.path(), "k", "n").unwrap();
        assert_eq!(all(&kernel.loops().unwrap()).len(), 1, "{op}");
        assert_eq!(files(&state), 1, "{op}");
    }
}

#[test]
fn names_that_make_no_file_are_refused() {
    let (kernel, state) = state();
    for (name, node) in [("k,l", "n"), ("k", "a/b"), ("", "n"), ("k", "")] {
        let error = keep(&kernel, state.path(), name, node).unwrap_err();
        assert!(error.to_string().contains("no name of a file"), "{error}");
    }
}

#[test]
fn a_pin_is_of_another_node_if_that_runs() {
    let own = testing::marker("u", 'a');
    let other = testing::marker("w", 'b');
    let gone = testing::marker("w", 'c');
    let loops = LoopTable::from(vec![
        testing::marker_device(1, &own),
        testing::marker_device(2, &other),
        // A forged one, with the nonce of this node.
        testing::marker_device(3, &testing::marker("w", 'a')),
    ]);
    let mounts = "40 1 7:1 / /state/kernel/alive ro - ext4 /dev/loop1 ro\n";
    let mounts = MountTable::parse(mounts.as_bytes()).unwrap();
    for (marker, expected) in [(&own, false), (&other, true), (&gone, false)] {
        let pin = testing::pin_device(10, 7, marker);
        let found = is_pin_of_another(&pin, &loops, &mounts);
        assert_eq!(found, expected, "{marker:?}");
    }
}
