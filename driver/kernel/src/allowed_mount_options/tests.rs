use FsType::{Btrfs, Ext4, Xfs};

use rstest::rstest;

use super::*;

/// The flags of a text, in which they are separated by spaces.
fn flags(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

#[rstest]
#[case(Ext4, "noatime,discard nodev")]
#[case(Ext4, "ro rw suid dev exec sync dirsync lazytime iversion silent")]
#[case(
    Ext4,
    "defaults,_netdev,nofail x-systemd.automount x-a=b comment=any/thing"
)]
#[case(
    Ext4,
    "data=journal errors=continue errors=remount-ro commit=30 barrier=0 barrier"
)]
#[case(
    Ext4,
    "init_itable init_itable=20 stripe=16 resuid=1000 dax=never noinit_itable"
)]
#[case(Ext4, "usrquota,grpquota,prjquota quota noquota user_xattr,acl")]
#[case(Xfs, "nouuid,allocsize=64k,logbsize=256k logbufs=8 sunit=8 swidth=64")]
#[case(
    Xfs,
    "inode64 largeio swalloc wsync filestreams uquota,gqnoenforce,pquota"
)]
#[case(
    Btrfs,
    "compress compress=zstd:3 compress-force=zlib autodefrag discard=async,ssd"
)]
#[case(
    Btrfs,
    "subvol=@home/data,subvolid=257 space_cache=v2 max_inline=2k thread_pool=4"
)]
#[case(Ext4, "context=system_u:object_r:container_file_t:s0")]
#[case(
    Xfs,
    r#"context="system_u:object_r:container_file_t:s0:c1,c2" noatime"#
)]
#[case(Btrfs, r#"context="u:r:t:s0:c1,c2.c9,c12-s3:c4,c5",nodatacow"#)]
#[case(Ext4, r#"fscontext="u:r:t:s0:c1 c2",noexec"#)]
fn options_of_the_own_filesystem_are_allowed(#[case] fs: FsType, #[case] text: &str) {
    assert_eq!(check_mount_options(fs, &flags(text)), Ok(()));
}

#[rstest]
// Options that reach other devices or files.
#[case(Xfs, "rtdev=/dev/sda", "rtdev")]
#[case(Xfs, "noatime,logdev=/dev/sda", "logdev")]
#[case(Btrfs, "device=/dev/sda", "device")]
#[case(Ext4, "journal_path=/dev/sda", "journal_path")]
#[case(Ext4, "journal_dev=0x801", "journal_dev")]
#[case(Ext4, "usrjquota=aquota.user", "usrjquota")]
#[case(Ext4, "source=/dev/sda", "source")]
#[case(Ext4, "loop=/dev/loop0", "loop")]
#[case(Ext4, "offset=4096", "offset")]
#[case(Btrfs, "subvol=../x", "subvol")]
#[case(Btrfs, "subvol=", "subvol")]
#[case(Btrfs, "subvol=a\\,device", "subvol")]
// Those of another filesystem.
#[case(Ext4, "rtdev=/dev/sda", "rtdev")]
#[case(Ext4, "nouuid", "nouuid")]
#[case(Xfs, "subvol=a", "subvol")]
#[case(Btrfs, "data=journal", "data")]
// Options that concern the node, or what a journal has not completed.
#[case(Ext4, "errors=panic", "errors")]
#[case(Ext4, "warn_on_error", "warn_on_error")]
#[case(Ext4, "norecovery", "norecovery")]
#[case(Ext4, "noload,ro", "noload")]
#[case(Ext4, "abort", "abort")]
#[case(Ext4, "sb=131072", "sb")]
#[case(Xfs, "ro norecovery", "norecovery")]
#[case(Btrfs, "rescue=all,ro", "rescue")]
#[case(Btrfs, "degraded", "degraded")]
#[case(Btrfs, "fatal_errors=panic", "fatal_errors")]
#[case(Ext4, "bind", "bind")]
#[case(Ext4, "remount,ro", "remount")]
// Values.
#[case(Ext4, "commit=-1", "commit")]
#[case(Ext4, "commit=4294967296", "commit")]
#[case(Ext4, "commit=", "commit")]
#[case(Ext4, "commit", "commit")]
#[case(Ext4, "noatime=1", "noatime")]
#[case(Ext4, "acl=1", "acl")]
#[case(Xfs, "allocsize=1/2", "allocsize")]
#[case(Btrfs, "compress=zstd:16", "compress")]
#[case(Ext4, "dax", "dax")]
#[case(Ext4, "dax=always", "dax")]
// Spellings.
#[case(Xfs, "RTDEV=/dev/sda", "RTDEV")]
#[case(Xfs, "\trtdev=/dev/sda", "\\trtdev")]
#[case(Ext4, "no-such-option", "no-such-option")]
// Words in quotes that the kernel would read as options of their own.
#[case(Xfs, r#"context="a,rtdev=/dev/sda,b""#, "rtdev")]
#[case(Xfs, r#"context="a,norecovery,c1""#, "norecovery")]
#[case(Xfs, r#"x-a="b rtdev=/dev/sda x-c=""#, "rtdev")]
#[case(Xfs, r#"comment="b,rtdev=/dev/sda,""#, "rtdev")]
#[case(Xfs, r#"context="a,c1"#, "context")]
#[case(Xfs, r#"context=a,c1"#, "c1")]
#[case(Xfs, r#"context="a"b"#, "context")]
#[case(Xfs, "context=", "context")]
#[case(Xfs, "context=a/b", "context")]
#[case(Xfs, "context", "context")]
fn all_others_are_refused_by_name(#[case] fs: FsType, #[case] text: &str, #[case] named: &str) {
    let refused = check_mount_options(fs, &flags(text)).expect_err(text);
    let name = format!("\"{named}\"");
    assert!(
        refused.starts_with(&name) && refused.contains(fs.as_str()),
        "{refused}"
    );
    assert!(!refused.contains("sda"), "values may be secrets: {refused}");
    if refused.contains("is not allowed") {
        assert!(
            refused.contains("allowed are ") && refused.contains("noatime"),
            "{refused}"
        );
    }
}

#[test]
fn all_refused_options_are_found() {
    let refused = refused_mount_options(Xfs, &flags("noatime,rtdev=a nouuid logdev=b ro commit=5"));
    let names: Vec<_> = refused.into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["rtdev", "logdev", "commit"]);
}

#[test]
fn a_long_name_is_cut() {
    let refused = check_mount_options(Ext4, &["x".repeat(100_000)]).unwrap_err();
    assert!(refused.len() < 2500, "{}", refused.len());
}

/// What every volume is mounted with needs no exception.
#[test]
fn the_drivers_own_options_are_allowed() {
    for fs in FsType::ALL {
        let own = crate::default_mount_options(fs)
            .iter()
            .map(|one| (*one).to_owned());
        assert_eq!(check_mount_options(fs, &own.collect::<Vec<_>>()), Ok(()));
    }
}

/// docs/running.md lists the same options.
#[test]
fn the_document_has_the_tables() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/running.md");
    let text = std::fs::read_to_string(path).unwrap();
    for fs in FsType::ALL {
        let row = format!("| {fs} | `{}` |", names(fs).join(" "));
        assert!(text.contains(&row), "{path} lacks this row:\n{row}");
    }
}
