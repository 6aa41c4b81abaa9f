use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::linux::fs_tools::{Tool, mkfs};

const MI: u64 = 1 << 20;

fn image(dir: &Path, bytes: u64) -> File {
    let image = tempfile::tempfile_in(dir).unwrap();
    image.set_len(bytes).unwrap();
    image
}

fn make(templates: &Templates, image: &File, options: &[String]) {
    let path = Path::new("image");
    let spec = MkfsSpec {
        image: Some(image),
        options,
        ..MkfsSpec::new(path, FsType::Ext4)
    };
    mkfs(templates, &spec).unwrap();
}

fn run(tool: &'static str, words: &[&str], image: &File) -> String {
    let tool_on = Tool::new(tool, std::time::Duration::from_secs(60))
        .args(words)
        .arg_file(image);
    let output = tool_on.unwrap().run(Path::new("image")).unwrap();
    assert_eq!(output.code, 0, "{tool}: {}{}", output.stdout, output.stderr);
    output.stdout
}

fn words(options: &str) -> Vec<String> {
    options.split_whitespace().map(str::to_owned).collect()
}

/// True if the image came from a template: mke2fs itself would have filled it again.
fn is_copied(templates: &Templates, bytes: u64, options: &[String]) -> bool {
    let image = tempfile::tempfile().unwrap();
    image.set_len(bytes).unwrap();
    let spec = MkfsSpec {
        options,
        ..MkfsSpec::new(Path::new("image"), FsType::Ext4)
    };
    templates.write(&spec, &image).unwrap()
}

/// Sizes with and without copies of the superblock, in one group and in many.
#[test]
fn a_copy_is_sound_and_has_its_own_identity() {
    let dir = tempfile::tempdir().unwrap();
    for (bytes, options) in [
        (MI, ""),
        (16 * MI, ""),
        (1 << 30, ""),
        (1 << 30, "-E num_backup_sb=2,root_owner=7:8 -m 0 -L data"),
        (20 << 30, ""),
        (100 << 30, ""),
    ] {
        let (templates, options) = (Templates::default(), words(options));
        let images: Vec<File> = (0..3).map(|_| image(dir.path(), bytes)).collect();
        let mut identities = BTreeSet::new();
        let mut shown = BTreeSet::new();
        for image in &images {
            make(&templates, image, &options);
            run("e2fsck", &["-f", "-n"], image);
            let all = run("dumpe2fs", &[], image);
            let (identity, rest): (Vec<_>, Vec<_>) = all
                .lines()
                .filter(|l| !l.contains(" time:") && !l.contains(" created:"))
                .partition(|line| {
                    let name = line.split(':').next().unwrap_or_default();
                    ["Filesystem UUID", "Directory Hash Seed", "Checksum"].contains(&name)
                });
            assert_eq!(identity.len(), 3, "{identity:?}");
            identities.extend(identity.into_iter().map(str::to_owned));
            let rest = rest.into_iter().filter(|l| !l.starts_with("Last checked"));
            shown.insert(rest.collect::<Vec<_>>().join("\n"));
        }
        assert!(
            is_copied(&templates, bytes, &options),
            "{bytes} {options:?}"
        );
        assert_eq!(identities.len(), 9, "{bytes}: {identities:?}");
        assert_eq!(shown.len(), 1, "{bytes}: {shown:#?}");
    }
}

#[test]
fn only_an_equal_image_is_copied() {
    let dir = tempfile::tempdir().unwrap();
    let (templates, plain) = (Templates::default(), words(""));
    make(&templates, &image(dir.path(), 16 * MI), &plain);
    assert!(is_copied(&templates, 16 * MI, &plain));
    assert!(!is_copied(&templates, 17 * MI, &plain));
    assert!(!is_copied(&templates, 16 * MI, &words("-m 0")));
    for features in [
        "-O ^metadata_csum_seed",
        "-O ^metadata_csum,^metadata_csum_seed",
    ]
    .map(words)
    {
        make(&templates, &image(dir.path(), 16 * MI), &features);
        assert!(!is_copied(&templates, 16 * MI, &features), "{features:?}");
    }
    // More data than is worth keeping, or allocated space.
    let thick = image(dir.path(), 64 * MI);
    crate::file::allocate(&thick, 0..64 * MI).unwrap();
    make(&templates, &thick, &plain);
    assert!(!is_copied(&templates, 64 * MI, &plain));
    make(&templates, &image(dir.path(), 4 << 40), &plain);
    assert!(!is_copied(&templates, 4 << 40, &plain));
    // The oldest ones go.
    for n in 0..KEPT as u64 {
        make(&templates, &image(dir.path(), (20 + n) * MI), &plain);
    }
    assert!(!is_copied(&templates, 16 * MI, &plain));
    assert!(is_copied(&templates, 20 * MI, &plain));
}
