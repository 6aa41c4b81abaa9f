//! No secret leaves: the content of a Secret is in no other object, in no file of a driver, and in no
//! event of a process.
//! [`trace::line`] looks at what is said.

use std::io;
use std::path::{Path, PathBuf};

use hostloop_events::RING;
use hostloop_fake_api::{FakeApi, Write};

use crate::cluster::Cluster;
use crate::{secret, trace};

/// Larger files are images, which have what users write.
const LARGEST: u64 = 1 << 20;

/// Checks all objects that are written from now on.
pub(crate) fn guard(api: &FakeApi) {
    api.on_write(|write| {
        if let Some(leak) = leak(write) {
            trace::violation(leak);
        }
    });
}

/// What a write gives away.
fn leak(write: &Write) -> Option<String> {
    let new = write.new?;
    let is_leak = new["kind"] != "Secret" && secret::is_within(new);
    let hidden = secret::hidden(write.path);
    is_leak.then(|| format!("a secret leaves: {} writes it to {hidden}", write.who))
}

/// Checks the latest events of all processes, which `hostloop logs` shows.
pub(super) fn are_in_no_event() {
    for event in RING.since(0, usize::MAX).events {
        let text = serde_json::to_string(&*event).unwrap_or_default();
        if secret::is_in(&text) {
            let hidden = secret::hidden(&text);
            trace::violation(format!(
                "a secret leaves: an event of a process has it: {hidden}"
            ));
        }
    }
}

/// Checks the files of all drivers.
pub(super) fn are_in_no_file(cluster: &Cluster) {
    for machine in &cluster.machines {
        for dir in [machine.pool(), machine.state_dir()] {
            // Files come and go meanwhile.
            let mut found = Vec::new();
            let _ = search(&dir, &mut found);
            found.sort();
            for file in found {
                let file = file.display().to_string();
                trace::violation(format!(
                    "a secret leaves: the driver of {} writes it to {}",
                    machine.name(),
                    secret::hidden(&file)
                ));
            }
        }
    }
}

/// Finds the files in a directory that have the content of a secret.
fn search(dir: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let (path, about) = (entry.path(), entry.metadata()?);
        if about.is_dir() {
            search(&path, found)?;
        } else if about.is_file() && about.len() <= LARGEST {
            let content = std::fs::read(&path)?;
            if secret::is_in(&String::from_utf8_lossy(&content)) {
                found.push(path);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn written(new: &Value) -> Write<'_> {
        Write {
            who: "node",
            method: "PUT",
            path: "/api/v1/a",
            old: None,
            new: Some(new),
        }
    }

    #[test]
    fn only_a_secret_has_its_content() {
        let content = secret::content("a");
        let volume = json!({"kind": "PersistentVolume", "spec": {"a": [content.clone()]}});
        let found = leak(&written(&volume)).expect("a leak");
        assert_eq!(found, "a secret leaves: node writes it to /api/v1/a");
        assert_eq!(leak(&written(&secret::object("a"))), None);
        let dir = tempfile::tempdir().expect("a directory");
        let deep = dir.path().join("volumes");
        std::fs::create_dir(&deep).expect("a directory");
        std::fs::write(dir.path().join("good"), "nothing").expect("a file");
        std::fs::write(deep.join("bad"), &content).expect("a file");
        let mut found = Vec::new();
        search(dir.path(), &mut found).expect("a search");
        assert_eq!(found, [deep.join("bad")]);
    }
}
