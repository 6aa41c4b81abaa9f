//! Damaged files on disk: a damaged record, identity or state causes an error but no data loss.

use std::path::{Path, PathBuf};

use crate::entropy::Entropy;
use crate::target;
use crate::world::{World, start};

target!(
    /// With any content in one of the files, opening the pools returns and keeps every image.
    records,
    {
        let world = World::new();
        world.create_some();
        // Simulates the end of the process: releases the pools and keeps their files.
        let World { dir, kernel, controller, node } = world;
        drop((controller, node));
        let files = files_of(dir.path(), |path| path.extension().is_some_and(|e| e == "json"));
        let images = files_of(dir.path(), |path| path.file_name().is_some_and(|n| n == "image"));
        assert!(files.len() >= 8 && images.len() == 6, "{files:?} {images:?}");
        move |bytes: &[u8]| {
            let mut entropy = Entropy::new(bytes);
            let file = entropy.pick(&files).clone();
            let sound = std::fs::read(&file).expect("the file");
            let damaged = if entropy.chance(40) {
                bytes.to_vec()
            } else {
                entropy.mutate(&sound)
            };
            std::fs::write(&file, &damaged).expect("writing the file");
            drop(start(dir.path(), kernel.clone()));
            for image in &images {
                let damaged = String::from_utf8_lossy(&damaged);
                assert!(image.exists(), "{} is lost: {}: {damaged}", image.display(), file.display());
            }
            std::fs::write(&file, &sound).expect("restoring the file");
            let sound = start(dir.path(), kernel.clone());
            assert!(sound.is_ok(), "{}", sound.err().map(|e| e.to_string()).unwrap_or_default());
        }
    }
);

/// All matching files below `dir`, sorted.
fn files_of(dir: &Path, wanted: impl Fn(&Path) -> bool + Copy) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files_of(&path, wanted));
        } else if wanted(&path) {
            found.push(path);
        }
    }
    found.sort();
    found
}
