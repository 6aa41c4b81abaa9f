//! Invalid IDs, names, tokens, paths and capabilities.

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_proto::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use hostloop_test::client::mounted;

/// What may stand where an ID belongs, with words for it; `real` is one that would be right.
pub(crate) fn not_ids(real: &str) -> Vec<(&'static str, String)> {
    let not_ids: [(&'static str, &str); 23] = [
        ("a traversal", "../../../../canary"),
        ("an absolute path", "/etc/passwd"),
        ("a traversal after a prefix", "vol-../../../canary"),
        ("a traversal after an ID", &format!("{real}/../{real}")),
        ("an ID and a slash", &format!("{real}/")),
        ("an ID and a NUL", &format!("{real}\0")),
        ("an ID and a newline", &format!("{real}\n")),
        ("a space and an ID", &format!(" {real}")),
        ("an ID in capitals", &real.to_uppercase()),
        ("an ID cut short", &real[..real.len() - 1]),
        ("an ID made longer", &format!("{real}0")),
        ("two dots", ".."),
        ("one dot", "."),
        ("a NUL", "\0"),
        ("not ASCII", "vol-\u{202e}\u{fe0f}"),
        ("an escape sequence", "\u{1b}[2Jvol"),
        ("percent signs", "%s%n%2e%2e%2f"),
        ("a command", "$(touch /tmp/x);`id`"),
        ("half an inline handle", &inline(&"a".repeat(63))),
        ("an inline handle in capitals", &inline(&"A".repeat(64))),
        ("an inline traversal", &inline(&"../".repeat(22))),
        ("129 bytes", &"a".repeat(129)),
        ("a hundred thousand bytes", &"v".repeat(100_000)),
    ];
    not_ids.map(owned).into()
}

/// Kubelet's handle of an inline volume.
fn inline(digits: &str) -> String {
    format!("csi-{digits}")
}

fn owned((what, value): (&'static str, &str)) -> (&'static str, String) {
    (what, value.to_owned())
}

/// Well formed, of a pool that is not on this node.
pub(crate) fn foreign(real: &str) -> String {
    let mut parts: Vec<_> = real.split('-').collect();
    parts[1] = "0123456789abcdef";
    parts.join("-")
}

/// Well formed, of this node's pool, and never made.
pub(crate) fn missing(real: &str) -> String {
    let (head, uuid) = real.rsplit_once('-').expect("an ID has three parts");
    let mut digits: Vec<char> = uuid.chars().rev().collect();
    let ours: Vec<char> = uuid.chars().collect();
    // A version-7 UUID keeps its shape only where the version and variant digits stay.
    for fixed in [12, 16] {
        digits[fixed] = ours[fixed];
    }
    format!("{head}-{}", String::from_iter(digits))
}

/// Invalid names: too long, or with control characters that CSI forbids.
pub(crate) fn not_names() -> Vec<(&'static str, String)> {
    let not_names: [(&'static str, &str); 7] = [
        ("no name", ""),
        ("a name of 129 bytes", &"n".repeat(129)),
        ("a name of 65 two-byte letters", &"é".repeat(65)),
        ("a name with a NUL", "pvc\0x"),
        ("a name with a bell", "pvc\u{7}"),
        ("a name with DEL", "pvc\u{7f}"),
        ("a name with a C1 control", "pvc\u{85}"),
    ];
    not_names.map(owned).into()
}

/// Names that are odd and legal.
pub(crate) fn odd_names() -> Vec<(&'static str, String)> {
    let odd_names: [(&'static str, &str); 13] = [
        ("a tab", "a\tb"),
        ("a line feed", "a\nb"),
        ("a carriage return", "a\rb"),
        ("slashes", "a/b/c"),
        ("a traversal", "../../../../canary"),
        ("an absolute path", "/etc/passwd"),
        ("two dots", ".."),
        ("128 bytes", &"n".repeat(128)),
        ("64 two-byte letters", &"é".repeat(64)),
        ("a space", " "),
        ("a command", "$(touch canary)"),
        ("quotes", "\"'\\"),
        ("a format", "%s%n{}"),
    ];
    odd_names.map(owned).into()
}

/// Starting tokens that lead nowhere.
pub(crate) fn not_tokens() -> Vec<(&'static str, String)> {
    let not_tokens: [(&'static str, &str); 8] = [
        ("zero", "0"),
        ("minus one", "-1"),
        ("a huge number", &"9".repeat(40)),
        ("words", "invalid-token"),
        ("a NUL", "\0"),
        ("a traversal", "../../canary"),
        ("not ASCII", "\u{202e}"),
        ("many bytes", &"t".repeat(100_000)),
    ];
    not_tokens.map(owned).into()
}

/// Paths that break CSI's rules without a look at the disk.
pub(crate) fn not_paths() -> Vec<(&'static str, String)> {
    let not_paths: [(&'static str, &str); 7] = [
        ("no path", ""),
        ("a relative path", "pods/mount"),
        ("a path with ..", "/tmp/../etc/mount"),
        ("the root directory", "/"),
        ("a path with a NUL", "/tmp/a\0b"),
        ("two dots", ".."),
        ("a home", "~/mount"),
    ];
    not_paths.map(owned).into()
}

/// Capabilities that are none.
pub(crate) fn not_capabilities() -> Vec<(&'static str, csi::VolumeCapability)> {
    let plain = || mounted("ext4", Mode::SingleNodeWriter);
    let mode = |mode| csi::VolumeCapability {
        access_mode: Some(AccessMode { mode }),
        ..plain()
    };
    let fs = |fs| mounted(fs, Mode::SingleNodeWriter);
    let mount = |mount_flags, group: &str| csi::VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume {
            fs_type: "ext4".to_owned(),
            mount_flags,
            volume_mount_group: group.to_owned(),
        })),
        ..plain()
    };
    let flag = |flag: &str| mount(vec![flag.to_owned()], "");
    let group = |group| mount(Vec::new(), group);
    let no_mode = csi::VolumeCapability {
        access_mode: None,
        ..plain()
    };
    let no_type = csi::VolumeCapability {
        access_type: None,
        ..plain()
    };
    vec![
        ("an empty capability", csi::VolumeCapability::default()),
        ("no access mode", no_mode),
        ("no access type", no_type),
        ("the unknown mode", mode(0)),
        ("mode 99", mode(99)),
        ("mode -1", mode(-1)),
        ("the largest mode", mode(i32::MAX)),
        ("a filesystem we don't make", fs("ntfs")),
        ("a filesystem that is a path", fs("../ext4")),
        ("a filesystem with a NUL", fs("ext4\0")),
        ("a filesystem with an option", fs("ext4 -F")),
        ("an empty mount flag", flag("")),
        ("a mount flag with a NUL", flag("ro\0")),
        ("a mount flag with a newline", flag("a\nb")),
        ("a mount group", group("1000")),
        ("a mount group that is none", group("root")),
    ]
}
