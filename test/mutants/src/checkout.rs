//! The copy of the checkout.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

/// The variable that has the number of the mutant to switch on.
const VARIABLE: &str = "HOSTLOOP_MUTANT";

/// Where the copy gets the function that all mutants call: a crate that controllers and driver use.
const SWITCH: &str = "controllers/events/src/lib.rs";

/// Where the simulator starts a process for each history, without the variables that it has itself.
const PROCESS: &str = "test/simulator/src/process.rs";

/// The texts of files that are not the same in the copy.
pub(crate) type Texts = BTreeMap<PathBuf, String>;

/// Adds the files that switch a mutant on.
pub(crate) fn add_switch(checkout: &Path, texts: &mut Texts) -> io::Result<()> {
    let mut switch = std::fs::read_to_string(checkout.join(SWITCH))?;
    switch.push_str(&format!(
        "\n/// True if this mutant is switched on.\n\
         pub fn is_mutant(number: u32) -> bool {{\n    \
             static CHOSEN: LazyLock<Option<u32>> =\n        \
                 LazyLock::new(|| std::env::var(\"{VARIABLE}\").ok()?.parse().ok());\n    \
             *CHOSEN == Some(number)\n\
         }}\n"
    ));
    texts.insert(SWITCH.into(), switch);
    let process = std::fs::read_to_string(checkout.join(PROCESS))?;
    let clear = ".env_clear()";
    if process.matches(clear).count() != 1 || !process.contains("std::process::Command::new") {
        let lost = format!("{PROCESS} does not clear the environment of a history's process once");
        return Err(io::Error::other(lost));
    }
    let hands_on = format!(
        "{clear}.envs(std::env::var_os(\"{VARIABLE}\").map(|number| (\"{VARIABLE}\", number)))"
    );
    texts.insert(PROCESS.into(), process.replace(clear, &hands_on));
    Ok(())
}

/// Makes the copy of these files. A file that stays the same keeps its time, so that cargo builds
/// only what is new, and a file that is no longer there goes.
pub(crate) fn copy(
    checkout: &Path,
    tree: &Path,
    files: &BTreeSet<PathBuf>,
    texts: &Texts,
) -> io::Result<()> {
    for file in files {
        let (from, to) = (checkout.join(file), tree.join(file));
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let text = texts.get(file).map(String::as_bytes);
        copy_file(&from, &to, text)
            .map_err(|error| io::Error::other(format!("{}: {error}", file.display())))?;
    }
    remove_others(tree, tree, files)
}

/// Copies a file or a link, or gives the copy this text.
fn copy_file(from: &Path, to: &Path, text: Option<&[u8]>) -> io::Result<()> {
    if from.is_symlink() {
        return copy_link(from, to);
    }
    match text {
        Some(text) => write(to, text),
        None => write(to, &std::fs::read(from)?),
    }
}

fn copy_link(from: &Path, to: &Path) -> io::Result<()> {
    if to.symlink_metadata().is_ok() {
        std::fs::remove_file(to)?;
    }
    std::os::unix::fs::symlink(std::fs::read_link(from)?, to)
}

fn write(file: &Path, content: &[u8]) -> io::Result<()> {
    if file.is_symlink() {
        std::fs::remove_file(file)?;
    }
    if std::fs::read(file).is_ok_and(|before| before == content) {
        return Ok(());
    }
    std::fs::write(file, content)
}

/// Removes what is in a folder of the copy and not in the checkout.
fn remove_others(tree: &Path, folder: &Path, files: &BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            remove_others(tree, &path, files)?;
        } else if !path
            .strip_prefix(tree)
            .is_ok_and(|file| files.contains(file))
        {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_copy_changes_only_what_is_new() {
        let dir = tempfile::tempdir().unwrap();
        let (checkout, tree) = (dir.path().join("checkout"), dir.path().join("tree"));
        std::fs::create_dir_all(checkout.join("a")).unwrap();
        std::fs::write(checkout.join("a/same"), "same").unwrap();
        std::fs::write(checkout.join("a/text"), "as it is").unwrap();
        std::os::unix::fs::symlink("same", checkout.join("a/link")).unwrap();
        let files: BTreeSet<PathBuf> = ["a/same", "a/text", "a/link"].map(PathBuf::from).into();
        let mut texts = Texts::new();
        copy(&checkout, &tree, &files, &texts).unwrap();
        std::fs::write(tree.join("a/old"), "").unwrap();
        let time = SystemTime::UNIX_EPOCH;
        for name in ["a/same", "a/text"] {
            let file = std::fs::File::options()
                .write(true)
                .open(tree.join(name))
                .unwrap();
            file.set_modified(time).unwrap();
        }

        texts.insert("a/text".into(), "rewritten".to_owned());
        copy(&checkout, &tree, &files, &texts).unwrap();
        let modified = |name| tree.join(name).metadata().unwrap().modified().unwrap();
        assert_eq!(modified("a/same"), time);
        assert_ne!(modified("a/text"), time);
        assert_eq!(
            std::fs::read_to_string(tree.join("a/text")).unwrap(),
            "rewritten"
        );
        assert_eq!(
            std::fs::read_link(tree.join("a/link")).unwrap(),
            Path::new("same")
        );
        assert!(!tree.join("a/old").exists());
    }

    /// The checkout that has this crate.
    #[test]
    fn the_checkout_can_be_given_a_switch() {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut texts = Texts::new();
        add_switch(&checkout, &mut texts).unwrap();
        for file in [SWITCH, PROCESS] {
            syn::parse_file(&texts[Path::new(file)]).unwrap();
        }
        assert!(texts[Path::new(SWITCH)].contains("use std::sync::LazyLock;"));
    }
}
