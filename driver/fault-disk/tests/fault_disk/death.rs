//! A server in a process of its own, which dies.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hostloop_fault_disk::client::Client;
use hostloop_fault_disk::server::Server;
use hostloop_fault_disk::{FaultDisk, memory};
use hostloop_kernel::FsType;
use rstest::rstest;

use crate::rig::{Block, PATIENCE, Rig, name, open_direct};
use crate::server::{attach, connect_to};

const CACHE: usize = 4 << 20;

/// The variable with the path of a server's socket.
const SOCKET: &str = "FAULT_DISK_SOCKET";

/// A server that is killed at the end.
struct Process(Child);

impl Process {
    #[expect(clippy::disallowed_methods, reason = "its environment is made here")]
    fn start(socket: &Path) -> (Process, Client) {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "death::serve", "--ignored", "--nocapture"])
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| name == "TEST_RUN"))
            .env(SOCKET, socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let process = Process(child);
        (process, connect_to(socket))
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// A number of its status, in KiB.
    fn status(&self, field: &str) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(field));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        number.unwrap().parse().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "other tests start it as a process"]
fn serve() {
    let Some(socket) = std::env::var_os(SOCKET) else {
        return;
    };
    memory::lock().unwrap();
    Server::new(1 << 30).run(Path::new(&socket)).unwrap();
}

#[rstest]
fn a_server_that_dies_is_a_power_cut(
    #[values(FsType::Ext4, FsType::Xfs, FsType::Btrfs)] fs: FsType,
) {
    let rig = Rig::new();
    let dir = tempfile::tempdir().unwrap();
    let (mut process, mut client) = Process::start(&dir.path().join("faults.sock"));
    let name = name();
    let device = attach(&mut client, &name, &rig, CACHE);
    rig.mkfs(&device, fs);
    let mounted = rig.mount(&device, fs);
    let at = rig.mounted_at();
    let mut file = File::create(at.join("synced")).unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    file.sync_all().unwrap();
    File::open(&at).unwrap().sync_all().unwrap();

    process.kill();
    let begin = Instant::now();
    let failed = File::create(at.join("later")).and_then(|file| {
        file.sync_all()?;
        File::open(&at)?.sync_all()
    });
    assert!(failed.is_err());
    assert!(begin.elapsed() < Duration::from_secs(60), "nothing hangs");
    drop((file, mounted, device));

    let device = rig.attach(&rig.image());
    let _mounted = rig.mount(&device, fs);
    assert!(fs::read(at.join("synced")).unwrap() == [7; 100_000]);
}

#[test]
fn a_server_has_its_memory_from_the_start() {
    let rig = Rig::new();
    let dir = tempfile::tempdir().unwrap();
    let (process, mut client) = Process::start(&dir.path().join("faults.sock"));
    let before = process.status("VmRSS");
    let name = name();
    let device = attach(&mut client, &name, &rig, CACHE);
    let with_a_disk = process.status("VmRSS");
    let promised = FaultDisk::memory(CACHE) / 1024;
    let taken = with_a_disk - before;
    assert!(taken > promised * 9 / 10, "{taken} of {promised} KiB");
    assert!(
        taken < promised * 11 / 10 + 1024,
        "{taken} of {promised} KiB"
    );
    assert!(process.status("VmLck") >= with_a_disk);

    let file = open_direct(&device.path());
    for number in 0..5000 {
        Block::new(1).write(&file, number * 4096).unwrap();
    }
    drop(file);
    let mounted = {
        rig.mkfs(&device, FsType::Ext4);
        rig.mount(&device, FsType::Ext4)
    };
    fs::write(rig.mounted_at().join("file"), vec![7; 100 << 20]).unwrap();
    drop(mounted);
    let later = process.status("VmRSS");
    assert!(
        later < with_a_disk + 2048,
        "{later} after {with_a_disk} KiB"
    );
    drop(device);
    let end = Instant::now() + PATIENCE;
    while client.end(&name).is_err() {
        assert!(Instant::now() < end, "it does not end");
    }
}
