//! Grows unmounted filesystems in sparse files with the installed e2fsprogs.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;
use crate::{Ext4, Ext4Layout};

const MI: u64 = 1 << 20;
const GI: u64 = 1 << 30;

fn run(program: &str, args: &[&str]) -> bool {
    #[expect(clippy::disallowed_methods, reason = "a tool of filesystems")]
    let mut command = Command::new(program);
    command.args(args).output().unwrap().status.success()
}

/// An ext4 in a sparse file.
struct Image {
    dir: tempfile::TempDir,
    path: PathBuf,
}

impl Image {
    /// Makes an ext4 with files in it.
    fn new(bytes: u64, options: &[&str]) -> Image {
        let dir = tempfile::tempdir().unwrap();
        let (path, files) = (dir.path().join("image"), dir.path().join("files"));
        std::fs::create_dir(&files).unwrap();
        for n in 0..20u8 {
            std::fs::create_dir(files.join(format!("d{n}"))).unwrap();
            let content = vec![n; 100 + usize::from(n) * 3000];
            std::fs::write(files.join(format!("d{n}/file")), content).unwrap();
        }
        File::create(&path).unwrap().set_len(bytes).unwrap();
        let text = |p: &Path| p.to_str().unwrap().to_owned();
        let mut args = vec!["-q", "-F", "-b", "4096"];
        args.extend(options);
        let (from, to) = (text(&files), text(&path));
        args.extend(["-d", &from, &to]);
        assert!(run("mkfs.ext4", &args), "{args:?}");
        Image { dir, path }
    }

    fn arg(&self) -> &str {
        self.path.to_str().unwrap()
    }

    fn set_len(&self, bytes: u64) {
        File::options()
            .write(true)
            .open(&self.path)
            .unwrap()
            .set_len(bytes)
            .unwrap();
    }

    fn ext4(&self) -> Ext4 {
        superblock::ext4(&self.path).unwrap().unwrap()
    }

    fn layout(&self) -> Ext4Layout {
        self.ext4().layout
    }

    /// The largest size to which it grows without being mounted.
    fn most(&self) -> u64 {
        match self.layout().growth(1 << 60, false) {
            Ext4Growth::Not(why) => why.most(),
            other => panic!("{other:?}"),
        }
    }

    /// Checks that e2fsck finds nothing, and that all files are there.
    #[track_caller]
    fn assert_sound(&self, what: &str) {
        assert!(run("e2fsck", &["-f", "-n", self.arg()]), "{what}: e2fsck");
        let copy = self.dir.path().join("copy");
        std::fs::create_dir(&copy).unwrap();
        let dump = format!("rdump / {}", copy.display());
        run("debugfs", &["-R", &dump, self.arg()]);
        let files = self.dir.path().join("files");
        let (files, there) = (files.to_str().unwrap(), copy.to_str().unwrap());
        assert!(
            run("diff", &["-r", "-x", "lost+found", files, there]),
            "{what}: files differ"
        );
        std::fs::remove_dir_all(&copy).unwrap();
    }

    /// All blocks with data.
    fn blocks(&self) -> BTreeMap<u64, Vec<u8>> {
        let file = File::open(&self.path).unwrap();
        let end = file.metadata().unwrap().len();
        let mut blocks = BTreeMap::new();
        let mut next = 0;
        while let Some((start, stop)) = crate::file::next_data(&file, next, end).unwrap() {
            for at in (start - start % 4096..stop).step_by(4096) {
                let mut block = vec![0; 4096];
                file.read_exact_at(&mut block, at).unwrap();
                blocks.insert(at, block);
            }
            next = stop;
        }
        blocks
    }

    /// Replaces the content.
    fn write(&self, bytes: u64, blocks: &BTreeMap<u64, Vec<u8>>) {
        self.set_len(0);
        self.set_len(bytes);
        let file = File::options().write(true).open(&self.path).unwrap();
        for (at, block) in blocks {
            file.write_all_at(block, *at).unwrap();
        }
    }
}

#[test]
fn an_unmounted_ext4_grows_to_its_limit_and_no_further() {
    // size, options, limit
    let table: [(u64, &[&str], u64); 9] = [
        (8 * MI, &["-O", "metadata_csum,metadata_csum_seed"], 8 * GI),
        (16 * MI, &[], 16 * GI),
        (24 * MI, &["-O", "^flex_bg"], 24 * GI),
        (8 * MI, &["-E", "resize=16777216"], 64 * GI),
        (64 * MI, &["-O", "^resize_inode"], 8 * GI),
        (16 * MI, &["-O", "^64bit"], 16 * GI),
        (16 * MI, &["-O", "sparse_super2"], 16 * GI),
        (16 * MI, &["-b", "1024"], 16 * GI + 1024),
        (16 * MI, &["-O", "^has_journal,^metadata_csum"], 16 * GI),
    ];
    for (bytes, options, limit) in table {
        let image = Image::new(bytes, options);
        let what = format!("{bytes} {options:?}");
        assert_eq!(image.most(), limit, "{what}");
        image.set_len(limit + GI);
        let before = image.ext4();
        let refused = grow_unmounted(&image.path).unwrap_err().to_string();
        assert!(refused.contains(&limit.to_string()), "{what}: {refused}");
        assert_eq!(image.ext4(), before, "{what}");

        image.set_len(limit);
        check_whole(&image.path).unwrap();
        grow_unmounted(&image.path).unwrap();
        assert_eq!(image.layout().bytes(), limit - limit % 4096, "{what}");
        assert_eq!(
            image.layout().growth(limit, false),
            Ext4Growth::Done,
            "{what}"
        );
        assert_eq!(image.most(), limit, "{what}: the limit stays");
        image.assert_sound(&what);
    }
}

#[test]
fn an_ext4_without_reserved_blocks_has_no_limit_with_meta_bg_and_none_grows_with_bigalloc() {
    let image = Image::new(16 * MI, &["-O", "meta_bg,^resize_inode"]);
    image.set_len(40 * GI);
    grow_unmounted(&image.path).unwrap();
    assert_eq!(image.layout().bytes(), 40 * GI);
    image.assert_sound("meta_bg");

    let image = Image::new(16 * MI, &["-O", "bigalloc"]);
    assert_eq!(image.most(), 16 * MI);
    image.set_len(32 * MI);
    grow_unmounted(&image.path).unwrap_err();
    image.assert_sound("bigalloc");
}

#[test]
fn the_size_after_growth_is_known_before() {
    // A last group that is too small is left out.
    for (bytes, grown) in [
        (128 * MI + 4096, 128 * MI + 8192),
        (64 * MI, 128 * MI + 4096),
        (64 * MI, 129 * MI),
        (64 * MI, 133 * MI),
        (64 * MI, 200 * MI + 4096),
        (64 * MI, 256 * MI + 40960),
    ] {
        let image = Image::new(bytes, &[]);
        image.set_len(grown);
        let growth = image.layout().growth(grown, false);
        check_whole(&image.path).unwrap();
        grow_unmounted(&image.path).unwrap();
        let same = image.layout().bytes() <= bytes;
        assert_eq!(growth == Ext4Growth::Done, same, "{bytes} {grown}");
        assert_eq!(
            image.layout().growth(grown, false),
            Ext4Growth::Done,
            "{bytes} {grown}"
        );
        assert!(grown - image.layout().bytes() < 6 * MI, "{bytes} {grown}");
    }
}

/// A process that is killed leaves a part of resize2fs' writes, and a power cut any part.
#[test]
fn an_interrupted_growth_is_mended_and_loses_nothing() {
    // Within one group, there is no copy of the superblock.
    for (bytes, grown) in [(16 * MI, 100 * MI), (32 * MI, 8 * GI)] {
        let image = Image::new(bytes, &[]);
        image.set_len(grown);
        check_whole(&image.path).unwrap();
        let (before, saved) = (image.blocks(), image.ext4().superblock);
        grow_unmounted(&image.path).unwrap();
        let after = image.blocks();
        let written: Vec<u64> = after
            .keys()
            .filter(|at| before.get(at) != after.get(at))
            .copied()
            .collect();
        assert!(written.len() > 2, "{written:?}");

        let mut cases: Vec<(String, BTreeMap<u64, Vec<u8>>)> = Vec::new();
        let mut with = |what: String, has: &dyn Fn(usize) -> bool| {
            let mut blocks = before.clone();
            let parts = written.iter().enumerate().filter(|(n, _)| has(*n));
            blocks.extend(parts.map(|(_, at)| (*at, after[at].clone())));
            cases.push((what, blocks));
        };
        let count = written.len();
        with("nothing".to_owned(), &|_| false);
        with("the superblock".to_owned(), &|n| n == 0);
        with("all but the superblock".to_owned(), &|n| n != 0);
        with("the first half".to_owned(), &|n| n < count / 2);
        with("the second half".to_owned(), &|n| n >= count / 2);
        with("even".to_owned(), &|n| n % 2 == 0);
        with("odd".to_owned(), &|n| n % 2 == 1);
        // The error flag, or the new size, without its checksum.
        for (field, from) in [(0x3a, &before), (0x04, &before), (0x04, &after)] {
            let mut blocks = from.clone();
            let block = blocks.get_mut(&0).unwrap();
            block[1024 + field] ^= 2;
            cases.push((format!("a torn superblock at {field:#x}"), blocks));
        }
        for (what, blocks) in cases {
            let what = format!("{bytes} to {grown}, {what}");
            image.write(grown, &blocks);
            mend_growth(&image.path, &saved, true).unwrap_or_else(|e| panic!("{what}: {e}"));
            image.assert_sound(&what);
            check_whole(&image.path).unwrap_or_else(|e| panic!("{what}: {e}"));
            grow_unmounted(&image.path).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(image.layout().bytes(), grown, "{what}");
            image.assert_sound(&what);
        }
    }
}

/// e2fsck was killed while it wrote the superblock.
#[test]
fn an_interrupted_check_is_undone() {
    let image = Image::new(16 * MI, &[]);
    let saved = image.ext4().superblock;
    let file = File::options().write(true).open(&image.path).unwrap();
    file.write_all_at(&[!saved[0x40]], 1024 + 0x40).unwrap();
    assert!(!run("e2fsck", &["-p", image.arg()]));
    mend_growth(&image.path, &saved, false).unwrap();
    image.assert_sound("restored");
    // An intact superblock stays.
    check_whole(&image.path).unwrap();
    let checked = image.ext4();
    mend_growth(&image.path, &saved, false).unwrap();
    assert_eq!(image.ext4(), checked);
}

/// A restored backup of the record brings the intent back.
#[test]
fn a_filesystem_that_was_mounted_since_is_left_as_it_is() {
    let image = Image::new(16 * MI, &[]);
    let saved = image.ext4().superblock;
    image.set_len(200 * MI);
    check_whole(&image.path).unwrap();
    grow_unmounted(&image.path).unwrap();
    // Beyond the earlier end.
    let large = image.dir.path().join("files/large");
    std::fs::write(&large, vec![7; 40 << 20]).unwrap();
    let write = format!("write {} large", large.display());
    for request in [&write, "set_super_value mtime now"] {
        assert!(
            run("debugfs", &["-w", "-R", request, image.arg()]),
            "{request}"
        );
    }
    let used = image.ext4();
    for whole in [false, true] {
        mend_growth(&image.path, &saved, whole).unwrap();
        assert!(image.ext4() == used, "{whole}");
        image.assert_sound("in use since");
    }
}
