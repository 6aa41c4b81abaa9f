use std::time::Instant;

use super::*;
use crate::BLOCK_SIZE;

#[test]
fn probes_are_read() {
    let fs = |fs, uuid: &str| Probe::Filesystem {
        fs,
        uuid: uuid.to_owned(),
    };
    for (output, want) in [
        (
            "DEVNAME=/dev/loop1\nUUID=ab-c\nBLOCK_SIZE=4096\nTYPE=ext4\nUSAGE=filesystem\n",
            fs(FsType::Ext4, "ab-c"),
        ),
        ("DEVNAME=/dev/loop1\nTYPE=xfs\n", fs(FsType::Xfs, "")),
        (
            "LABEL=TYPE=vfat\nUUID_SUB=1\nUUID=2\nTYPE=btrfs\n",
            fs(FsType::Btrfs, "2"),
        ),
        (
            "TYPE=LVM2_member\nUSAGE=raid\n",
            Probe::Other("LVM2_member".to_owned()),
        ),
        (
            "DEVNAME=/dev/loop1\nPTUUID=1\nPTTYPE=gpt\n",
            Probe::Other("gpt partition table".to_owned()),
        ),
        ("PTTYPE=dos\nTYPE=vfat\n", Probe::Other("vfat".to_owned())),
        (
            "DEVNAME=/dev/sda3\nPART_ENTRY_SCHEME=gpt\nPART_ENTRY_NUMBER=3\n",
            Probe::Blank,
        ),
    ] {
        assert_eq!(parse_probe(output), want, "{output}");
    }
}

#[test]
fn mkfs_gets_the_options_of_the_spec() {
    use FsType::{Btrfs, Ext4, Xfs};
    for (fs, options, discard, force, uuid, want) in [
        (Ext4, &[][..], true, false, None, "-q -F -b 4096"),
        (
            Ext4,
            &[],
            false,
            true,
            Some("u"),
            "-q -F -b 4096 -U u -E nodiscard",
        ),
        (Ext4, &["-m", "0"], true, false, None, "-q -F -b 4096 -m 0"),
        (
            Ext4,
            &["-E", "stride=4", "-m", "0", "-Eroot_owner"],
            false,
            false,
            None,
            "-q -F -b 4096 -m 0 -E nodiscard,stride=4,root_owner",
        ),
        (
            Ext4,
            &["-E"],
            false,
            false,
            None,
            "-q -F -b 4096 -E nodiscard",
        ),
        (Xfs, &[], true, false, None, "-q"),
        (
            Xfs,
            &["-i", "size=1024"],
            false,
            true,
            Some("u"),
            "-q -f -K -m uuid=u -i size=1024",
        ),
        (Btrfs, &[], false, true, Some("u"), "-q -f -K -U u"),
        (Btrfs, &["-d", "single"], true, false, None, "-q -d single"),
    ] {
        let options: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
        let spec = MkfsSpec {
            options: &options,
            discard,
            force,
            uuid,
            ..MkfsSpec::new(Path::new("/dev/loop0"), fs)
        };
        assert_eq!(mkfs_arguments(&spec).join(" "), want);
    }
}

/// mkfs on an image without a loop device makes blocks of [`BLOCK_SIZE`], as a loop device has
/// them, and takes little space.
#[test]
fn an_image_is_formatted_by_its_handle() {
    let dir = tempfile::tempdir().unwrap();
    for fs in FsType::ALL {
        let path = dir.path().join(fs.as_str());
        let image = File::create_new(&path).unwrap();
        image.set_len(512 << 20).unwrap();
        std::fs::remove_file(&path).unwrap();
        let options = &["-L".to_owned(), "label".to_owned()];
        mkfs(
            &Templates::default(),
            &MkfsSpec {
                image: Some(&image),
                options,
                ..MkfsSpec::new(&path, fs)
            },
        )
        .unwrap();
        let tool = Tool::new("blkid", LOOK).args(["-p", "-o", "export"]);
        let found = tool.arg_file(&image).unwrap().run(&path).unwrap().stdout;
        assert!(found.contains(&format!("TYPE={fs}\n")), "{found}");
        assert!(found.contains("LABEL=label\n"), "{found}");
        assert!(
            found.contains(&format!("BLOCK_SIZE={BLOCK_SIZE}\n")),
            "{found}"
        );
        let used = crate::file::allocated_bytes(&image).unwrap();
        // XFS writes its whole log.
        let most = if fs == FsType::Xfs { 80 << 20 } else { 8 << 20 };
        assert!(used < most, "{fs}: {used} bytes");
    }
    // mkfs.xfs refuses an option that is given twice.
    let image = tempfile::tempfile().unwrap();
    image.set_len(512 << 20).unwrap();
    let options = &["-s", "size=4096"].map(str::to_owned);
    let path = Path::new("image");
    let spec = MkfsSpec {
        image: Some(&image),
        options,
        ..MkfsSpec::new(path, FsType::Xfs)
    };
    mkfs(&Templates::default(), &spec).unwrap();

    let path = dir.path().join("small");
    let image = File::create_new(&path).unwrap();
    let small = MkfsSpec {
        image: Some(&image),
        ..MkfsSpec::new(&path, FsType::Xfs)
    };
    let failed = mkfs(&Templates::default(), &small);
    let why = failed.unwrap_err().to_string();
    assert!(
        why.starts_with(&format!("mkfs.xfs {}: ", path.display())),
        "{why}"
    );
}

/// `mkfs.ext4 -d` would copy a directory below its working directory.
#[test]
fn tools_find_nothing_in_their_working_directory() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let file = std::fs::File::create(&image).unwrap();
    file.set_len(8 << 20).unwrap();
    for planted in ["etc", "proc", "."] {
        let output = Tool::new("mkfs.ext4", MAKE)
            .args(["-q", "-F", "-d", planted])
            .arg(&image)
            .run(&image)
            .unwrap();
        let listed = Tool::new("debugfs", LOOK)
            .args(["-R", "ls -p /"])
            .arg(&image)
            .run(&image)
            .unwrap();
        let mut names = listed.stdout.lines().filter_map(|l| l.split('/').nth(5));
        let done = output.code == 0;
        assert_eq!(done, planted == ".", "{planted}: {}", output.stderr);
        let empty = names.all(|name| [".", "..", "lost+found"].contains(&name));
        assert!(empty, "{planted}: {}", listed.stdout);
    }
    let write = Tool::new("touch", LOOK).arg("left").run(Path::new("/"));
    let said = write.unwrap().stderr;
    assert!(said.contains("Read-only file system"), "{said}");
}

#[test]
fn a_failing_tool_is_quoted() {
    let output = Tool::new("e2fsck", LOOK)
        .args(["-p", "/nonexistent"])
        .run(Path::new("/nonexistent"))
        .unwrap();
    assert_eq!(output.code, 8);
    let message = output.failed().to_string();
    let start = "e2fsck /nonexistent: exit code 8: ";
    assert!(message.starts_with(start), "{message}");
    assert!(message.contains("No such file"), "{message}");
}

/// The usage is longer than the lines that an error has.
#[test]
fn a_wrong_option_is_quoted_without_the_usage() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::File::create(&image)
        .unwrap()
        .set_len(300 << 20)
        .unwrap();
    for (tool, options, cause) in [
        (
            "mkfs.xfs",
            "-s size=65536",
            "Invalid value 65536 for -s size option",
        ),
        ("mkfs.xfs", "-m unheard=1", "unknown option -m unheard=1"),
        ("mkfs.ext4", "-Y", "invalid option -- 'Y'"),
        ("mkfs.btrfs", "--unheard", "unrecognized option '--unheard'"),
    ] {
        let tool = Tool::new(tool, LOOK).args(options.split(' ')).arg(&image);
        let message = tool.run(&image).unwrap().failed().to_string();
        assert!(message.contains(cause), "{message}");
        assert!(!message.to_lowercase().contains("usage"), "{message}");
    }
}

/// As if mke2fs.conf made it a default.
#[test]
fn a_feature_that_loses_data_is_switched_off() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let image = std::fs::File::create_new(&path).unwrap();
    image.set_len(64 << 20).unwrap();
    let run = |tool, words: &[&str]| {
        let output = Tool::new(tool, MAKE)
            .args(words)
            .arg(&path)
            .run(&path)
            .unwrap();
        assert_eq!(
            output.code, 0,
            "{tool}: {} {}",
            output.stdout, output.stderr
        );
        output.stdout
    };
    run(
        "mkfs.ext4",
        &["-q", "-F", "-b", "4096", "-O", "fast_commit"],
    );
    assert!(run("dumpe2fs", &["-h"]).contains("fast_commit"));
    let image = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    for image in [Some(&image), None] {
        let spec = MkfsSpec {
            image,
            ..MkfsSpec::new(&path, FsType::Ext4)
        };
        without_fast_commit(&spec).unwrap();
        assert!(!run("dumpe2fs", &["-h"]).contains("fast_commit"));
        run("e2fsck", &["-f", "-n"]);
        run("tune2fs", &["-O", "fast_commit"]);
    }
}

#[test]
fn a_missing_tool_is_named() {
    let e = Tool::new("mkfs.nothing", LOOK).run(Path::new("/dev/x"));
    let message = e.err().unwrap().to_string();
    assert_eq!(message, "mkfs.nothing /dev/x: not installed");
}

#[test]
fn a_slow_tool_is_ended() {
    let began = Instant::now();
    let slow = Tool::new("sleep", Duration::from_millis(200))
        .arg("600")
        .run(Path::new("/dev/x"));
    assert!(matches!(slow, Err(Error::TimedOut { .. })));
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[test]
fn the_environment_is_bare() {
    let output = Tool::new("env", LOOK).run(Path::new("/")).unwrap();
    let names = output.stdout.lines().filter_map(|l| l.split('=').next());
    assert_eq!(names.collect::<Vec<_>>(), ["LC_ALL", "PATH"]);
}

#[test]
fn both_streams_may_be_long() {
    let output = Tool::new("awk", LOOK)
        .arg("BEGIN { for (i = 0; i < 50000; i++) { print i; print i > \"/dev/stderr\" } }")
        .run(Path::new("/"))
        .unwrap();
    assert_eq!(output.stdout.lines().count(), 50_000);
    assert_eq!(output.stderr.lines().count(), 50_000);
}

#[test]
fn capabilities_are_read() {
    let status = "Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t000001fffeffffff\n";
    for (status, number, has) in [
        (status, 24, Some(false)),
        (status, 23, Some(true)),
        (status, 0, Some(true)),
        ("CapEff:\tx\n", 0, None),
        ("CapPrm:\t01\n", 0, None),
        ("", 0, None),
    ] {
        assert_eq!(has_capability(status, number), has, "{status} {number}");
    }
    assert!(grows_mounted(FsType::Xfs) && grows_mounted(FsType::Btrfs));
}
