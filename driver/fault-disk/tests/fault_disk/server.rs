//! The server and its client.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hostloop_fault_disk::client::Client;
use hostloop_fault_disk::limits::Limits;
use hostloop_fault_disk::power_cut::Loss;
use hostloop_fault_disk::server::Server;
use hostloop_fault_disk::{Error, FaultDisk, Settings};
use hostloop_kernel::LoopDevice;

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
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Makes a disk of the image, and attaches a device to it.
pub(crate) fn attach(client: &mut Client, name: &str, rig: &Rig, cache_bytes: usize) -> LoopDevice {
    let file = client.serve("", name, &rig.image(), cache_bytes, &Settings::default());
    rig.attach(&file.unwrap())
}

#[test]
fn a_client_has_the_disks_of_its_server() {
    let (one, two) = (Rig::new(), Rig::new());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("faults.sock");
    let memory = 2 * FaultDisk::memory(CACHE) as u64;
    let mut client = connect(&Server::new(memory), &path);
    let (first, second) = (name(), name());

    let first_device = attach(&mut client, &first, &one, CACHE);
    let second_device = attach(&mut client, &second, &two, CACHE);
    let refused = client.serve("", "third", &one.image(), 0, &Settings::default());
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

/// A driver that ends takes the delays from all disks at the same time.
#[test]
fn each_disk_of_a_node_may_have_a_connection() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("faults.sock");
    let memory = 512 << 20;
    let disks = memory / FaultDisk::memory(0);
    let _first = connect(&Server::new(memory as u64), &path);
    let mut clients: Vec<Client> = (0..disks).map(|_| connect_to(&path)).collect();
    for client in &mut clients {
        assert!(client.list().unwrap().is_empty());
    }
}

/// Its driver may have died, and with it all that would ask for its end.
#[test]
fn a_disk_without_users_goes_unasked() {
    let rig = Rig::new();
    let dir = tempfile::tempdir().unwrap();
    let mut client = connect(&Server::new(1 << 30), &dir.path().join("faults.sock"));
    let name = name();
    let device = attach(&mut client, &name, &rig, CACHE);
    client.state(&name).unwrap();
    drop(device);
    let end = Instant::now() + PATIENCE;
    // A request for the state of a disk forgets none.
    while client.state(&name).is_ok() {
        assert!(Instant::now() < end, "{name} is still there");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A write to a device, and whether it has ended.
struct Writer {
    thread: std::thread::JoinHandle<()>,
}

impl Writer {
    fn start(device: &File) -> Writer {
        let device = device.try_clone().unwrap();
        let thread = std::thread::spawn(move || Block::new(4).write(&device, 0).unwrap());
        Writer { thread }
    }

    fn waits(&self) -> bool {
        std::thread::sleep(Duration::from_millis(200));
        !self.thread.is_finished()
    }

    fn ends(self) {
        self.thread.join().unwrap();
    }
}

#[test]
fn disks_are_held_for_a_client_that_lives() {
    let (one, two) = (Rig::new(), Rig::new());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("faults.sock");
    let mut client = connect(&Server::new(1 << 30), &path);
    let (first, second) = (name(), name());
    let first_device = attach(&mut client, &first, &one, CACHE);
    let second_device = attach(&mut client, &second, &two, CACHE);
    let both = BTreeSet::from([first.clone(), second.clone()]);
    // To open a device may read.
    let first_file = open_direct(&first_device.path());
    let second_file = open_direct(&second_device.path());

    // Until it says so. Others ask for their state meanwhile.
    client.hold(both.clone(), PATIENCE).unwrap();
    let writer = Writer::start(&first_file);
    assert!(writer.waits());
    assert!(!connect_to(&path).state(&second).unwrap().is_cut);
    client.release().unwrap();
    writer.ends();
    let refused = client.release().unwrap_err().to_string();
    assert!(refused.contains("no disk is held"), "{refused}");

    // Until its end.
    let mut other = connect_to(&path);
    other.hold(both.clone(), PATIENCE).unwrap();
    let writer = Writer::start(&second_file);
    assert!(writer.waits());
    drop(other);
    writer.ends();

    // Until the time has passed.
    client
        .hold(both.clone(), Duration::from_millis(300))
        .unwrap();
    Writer::start(&first_file).ends();
    std::thread::sleep(Duration::from_millis(400));
    let refused = client.release().unwrap_err().to_string();
    assert!(refused.contains("and then no longer"), "{refused}");

    // Another request ends it, too.
    client.hold(both.clone(), PATIENCE).unwrap();
    let refused = client.list().unwrap_err().to_string();
    assert!(refused.contains("another request"), "{refused}");
    Writer::start(&first_file).ends();

    let with_another = BTreeSet::from([first.clone(), "gone".to_owned()]);
    let refused = client.hold(with_another, PATIENCE).unwrap_err();
    assert!(matches!(refused, Error::NotFound(name) if name == "gone"));
    client
        .cut_power(BTreeSet::from([second.clone()]), Loss::All, 0)
        .unwrap();
    let refused = client.hold(both, PATIENCE).unwrap_err().to_string();
    assert!(refused.contains("was cut"), "{refused}");

    drop((first_file, second_file, first_device, second_device));
    client.end(&first).unwrap();
    client.end(&second).unwrap();
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
        client.serve(namespace, &name(), &image, 0, &Settings::default())
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
        .serve("", "a/b", &rig.image(), 0, &Settings::default())
        .unwrap_err();
    assert!(refused.to_string().contains("name"), "{refused}");
    let refused = client
        .serve("", "vol", &rig.image(), 1000, &Settings::default())
        .unwrap_err();
    assert!(refused.to_string().contains("write cache"), "{refused}");
    let read_only = std::fs::File::open(rig.image_path()).unwrap();
    let refused = client
        .serve("", "vol", &read_only, 0, &Settings::default())
        .unwrap_err();
    assert!(
        refused.to_string().contains("reading and writing"),
        "{refused}"
    );
    assert!(client.list().unwrap().is_empty());
}
