use super::*;

fn check(fs: FsType, words: &str) -> Result<(), String> {
    let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    check_mkfs_options(fs, &words)
}

#[test]
fn options_that_change_only_the_filesystem_are_allowed() {
    use FsType::{Btrfs, Ext4, Xfs};
    for (fs, words) in [
        (Ext4, "-m 0"),
        (Ext4, "-m0.5 -N 1000 -i 16384 -I 256 -b 4096"),
        (Ext4, "-L data -O ^has_journal,metadata_csum"),
        (Ext4, "-Lmy.data -J size=64"),
        (Ext4, "-E lazy_itable_init=0,nodiscard,root_owner=1000:1000"),
        (Ext4, "-Estride=16,stripe_width=64 -G 32"),
        (Ext4, "-O bigalloc -C 64k"),
        (Ext4, "-O ^fast_commit"),
        (Xfs, "-i size=1024,maxpct=50 -m reflink=1 -b size=4096"),
        (Xfs, "-L x -m bigtime=0"),
        (Xfs, "-d agcount=4,su=64k,sw=2 -l size=64m -n size=8k"),
        (Btrfs, "-d single -m dup -M -L x"),
        (Btrfs, "--data=single --metadata dup --mixed --csum xxhash"),
        (Btrfs, "-dsingle -n 16k -O no-holes,^extref -R quota"),
    ] {
        assert_eq!(check(fs, words), Ok(()), "{fs} {words}");
    }
    assert_eq!(check_mkfs_options(Ext4, &[]), Ok(()));
    let label = ["-L", ""].map(str::to_owned);
    assert_eq!(check_mkfs_options(Ext4, &label), Ok(()));
}

#[test]
fn options_that_read_files_or_concern_errors_are_refused() {
    use FsType::{Btrfs, Ext4, Xfs};
    for (fs, words, named) in [
        // Options that read files of the container or the node.
        (Ext4, "-d etc", "-d"),
        (Ext4, "-detc", "-detc"),
        (Ext4, "-m 0 -d .", "-d"),
        (Ext4, "-l badblocks", "-l"),
        (Ext4, "-z undo", "-z"),
        (Ext4, "-c", "-c"),
        (Xfs, "-p protofile", "-p"),
        (Xfs, "-c options=x", "-c"),
        (Xfs, "-d name=x", "name"),
        (Xfs, "-d file=1", "file"),
        (Xfs, "-d file", "file"),
        (Btrfs, "--rootdir etc", "--rootdir"),
        (Btrfs, "--rootdir=etc", "--rootdir=etc"),
        (Btrfs, "--rootd=etc", "--rootd=etc"),
        (Btrfs, "-r etc", "-r"),
        (Btrfs, "-retc", "-retc"),
        (Btrfs, "-Mr etc", "-Mr"),
        (Btrfs, "-u x", "-u"),
        (Btrfs, "--shrink", "--shrink"),
        // Options that change the kernel's handling of errors, or make half a filesystem.
        (Ext4, "-e panic", "-e"),
        (Ext4, "-epanic", "-epanic"),
        (Ext4, "-S", "-S"),
        (Ext4, "-S -O ^has_journal -e panic", "-S"),
        (Ext4, "-FS", "-FS"),
        (Ext4, "-E offset=4096", "offset"),
        (Ext4, "-E nodiscard,test_fs", "test_fs"),
        (Ext4, "-E discard", "discard"),
        (Ext4, "-n", "-n"),
        (Xfs, "-N", "-N"),
        // A feature with which a crash loses data, in all spellings.
        (Ext4, "-O fast_commit", "e2fsck"),
        (Ext4, "-Ofast_commit", "e2fsck"),
        (Ext4, "-O ^has_journal,fast_commit", "e2fsck"),
        (Ext4, "-O fast_commit,^fast_commit", "e2fsck"),
        (Ext4, "-O FAST_COMMIT", "FAST_COMMIT"),
        (Ext4, "-O +fast_commit", "+fast_commit"),
        (Ext4, "-O all", "all"),
        (Ext4, "-O ^all", "^all"),
        (Ext4, "-O 0x400", "0x400"),
        (Ext4, "-O FEATURE_C10", "FEATURE_C10"),
        (Ext4, "-J fast_commit_size=1024", "fast_commit_size"),
        (Ext4, "-T news", "-T"),
        (Ext4, "-t ext4", "-t"),
        (Ext4, "-E fast_commit", "fast_commit"),
        // Options that reach other devices.
        (Ext4, "-J device=LABEL=x", "device"),
        (Ext4, "-O journal_dev", "journal_dev"),
        (Ext4, "-O none", "none"),
        (Xfs, "-l logdev=x", "logdev"),
        (Xfs, "-r rtdev=x", "-r"),
        (Btrfs, "-d raid0", "raid0"),
        // Words that are neither an option nor the value of one.
        (Ext4, "-m 0 loop7", "loop7"),
        (Ext4, "1000", "1000"),
        (Ext4, "--", "--"),
        (Ext4, "", "\"\""),
        (Ext4, "-m", "-m"),
        (Ext4, "-m 51", "51"),
        (Ext4, "-m -1", "-1"),
        (Ext4, "-m nan", "nan"),
        (Ext4, "-N -d", "-d"),
        (Ext4, "-N x", "x"),
        (Ext4, "-N 1/2", "1/2"),
        (Ext4, "-b 1024", "1024"),
        (Ext4, "-L 12345678901234567", "12345678901234567"),
        (Ext4, "-L -d", "-d"),
        (Ext4, "-L a/b", "a/b"),
        (Ext4, "-E root_owner=0", "root_owner"),
        (Ext4, "-E root_owner=+1:2", "+1:2"),
        (Ext4, "-E stride", "stride"),
        (Ext4, "-E nodiscard=1", "nodiscard"),
        (Ext4, "-E ,", "\"\""),
        (Xfs, "-m uuid=x", "uuid"),
        (Xfs, "-i size=1024,", "\"\""),
        (Btrfs, "--mixed=1", "--mixed=1"),
        (Btrfs, "--data", "--data"),
        (Btrfs, "-U x", "-U"),
    ] {
        let refused = check(fs, words).expect_err(words);
        assert!(refused.contains(named), "{fs} {words}: {refused}");
        let complete = refused.contains(fs.as_str()) || refused.ends_with("no value");
        assert!(complete, "{refused}");
    }
}

#[test]
fn option_names_are_unambiguous() {
    for fs in FsType::ALL {
        for option in table(fs) {
            for name in option.names {
                let long = name.starts_with("--");
                assert!(long || name.len() == 2, "{fs} {name}");
                // No other name begins with a short name: mkfs would read the rest as the short
                // one's value.
                let mut others = table(fs).iter().flat_map(|o| o.names);
                let unique = others.all(|n| long || n == name || !n.starts_with(name));
                assert!(unique, "{fs} {name}");
            }
        }
    }
}
