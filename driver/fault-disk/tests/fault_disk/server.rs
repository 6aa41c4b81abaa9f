//! The server and its client.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use hostloop_fault_disk::client::Client;
use hostloop_fault_disk::limits::Limits;
use hostloop_fault_disk::power_cut::Loss;
use hostloop_fault_disk::server::Server;
use hostloop_fault_disk::{Error, FaultDisk, Settings};

use crate::rig::{Block, PATIENCE, Rig, name, open_direct};

const CACHE: usize = 1 << 20;

fn connect(server: &Arc<Server>, path: &Path) -> Client {
    let (server, at) = (Arc::clone(server), path.to_owned());
    std::thread::spawn(move || server.run(&at).unwrap());
    connect_to(path)
}

/// Connects to a server that may not listen yet.
pub(crate) fn connect_to(path: &Path) -> Client {
    let end = Instant::now() + PATIENCE;
    loop {
        match Client::connect(path) {
            Ok(client) => return client,
            Err(e) if Instant::now() > end => panic!("{e}"),
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(10)),
        }
    }
}

#[test]
fn a_client_has_the_disks_of_its_server() {
    let (one, two) = (Rig::new(), Rig::new());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("faults.sock");
    let memory = 2 * FaultDisk::memory(CACHE) as u64;
    let mut client = connect(&Server::new(memory), &path);
    let (first, second) = (name(), name());

    let file = client
        .serve(&first, &one.image(), CACHE, &Settings::default())
        .unwrap();
    let first_device = one.attach(&file);
    drop(file);
    let file = client
        .serve(&second, &two.image(), CACHE, &Settings::default())
        .unwrap();
    let second_device = two.attach(&file);
    drop(file);
    let refused = client.serve("third", &one.image(), 0, &Settings::default());
    assert!(refused.unwrap_err().to_string().contains("locked memory"));

    let settings = Settings {
        limits: Limits {
            wiops: Some(5000),
            ..Limits::default()
        },
        ..Settings::default()
    };
    client.set(&first, &settings).unwrap();
    for device in [&first_device, &second_device] {
        Block::new(3)
            .write(&open_direct(&device.path()), 0)
            .unwrap();
    }
    assert_eq!(client.list().unwrap(), [first.clone(), second.clone()]);
    let state = client.state(&first).unwrap();
    assert_eq!((state.settings, state.is_cut), (settings, false));
    assert!(state.counts.operations > 0);

    let names = BTreeSet::from([first.clone(), second.clone(), "gone".to_owned()]);
    let refused = client.cut_power(names, Loss::All, 0).unwrap_err();
    assert!(matches!(refused, Error::NotFound(name) if name == "gone"));
    assert!(!client.state(&first).unwrap().is_cut, "all or none");
    let names = BTreeSet::from([first.clone(), second.clone()]);
    let reports = client.cut_power(names, Loss::All, 0).unwrap();
    assert_eq!(reports.len(), 2);
    for name in [&first, &second] {
        assert!(client.state(name).unwrap().is_cut);
    }

    drop((first_device, second_device));
    client.end(&first).unwrap();
    client.end(&second).unwrap();
    assert!(client.list().unwrap().is_empty());
}

#[test]
fn a_namespace_has_half_of_the_memory() {
    let rig = Rig::new();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("faults.sock");
    let memory = 4 * FaultDisk::memory(0) as u64;
    let mut client = connect(&Server::new(memory), &path);
    let mut serve = |namespace: &str| {
        let image = rig.image();
        client.serve_in(namespace, &name(), &image, 0, &Settings::default())
    };
    let _first = serve("a").unwrap();
    let second = serve("a").unwrap();
    let refused = serve("a").unwrap_err().to_string();
    assert!(refused.contains("namespace a has 0 left"), "{refused}");
    let _other = serve("b").unwrap();
    drop(second);
    // It ends once the kernel has let its file go.
    let end = Instant::now() + PATIENCE;
    while let Err(error) = serve("a").map(drop) {
        assert!(Instant::now() < end, "{error}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn a_mistake_ends_no_connection() {
    let rig = Rig::new();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("faults.sock");
    let mut client = connect(&Server::new(1 << 30), &path);
    let refused = client.set("vol-none", &Settings::default()).unwrap_err();
    assert!(matches!(refused, Error::NotFound(_)), "{refused}");
    let refused = client
        .serve("a/b", &rig.image(), 0, &Settings::default())
        .unwrap_err();
    assert!(refused.to_string().contains("name"), "{refused}");
    let refused = client
        .serve("vol", &rig.image(), 1000, &Settings::default())
        .unwrap_err();
    assert!(refused.to_string().contains("write cache"), "{refused}");
    let read_only = std::fs::File::open(rig.image_path()).unwrap();
    let refused = client
        .serve("vol", &read_only, 0, &Settings::default())
        .unwrap_err();
    assert!(
        refused.to_string().contains("reading and writing"),
        "{refused}"
    );
    assert!(client.list().unwrap().is_empty());
}
