//! A pool on NFS, served by this machine to itself.

use std::fs::{create_dir_all, read_to_string, write};
use std::path::Path;

use hostloop_driver::kernel::LoopDevices;
use hostloop_driver::storage::PoolKind;
use tempfile::TempDir;

use super::support::*;

/// The directory in which nfsd shows its settings.
const NFSD: &str = "/proc/fs/nfsd";

/// An export that is mounted here. Dropping it unmounts it and stops the server.
struct Export {
    at: std::path::PathBuf,
    _dir: TempDir,
    _served: Ground,
}

impl Export {
    fn new() -> Export {
        let served = Ground::new("ext4", GI, &[]);
        run("mount", &["-t", "nfsd", "nfsd", NFSD]);
        // A server that has just started waits for clients of an earlier one.
        for seconds in ["nfsv4leasetime", "nfsv4gracetime"] {
            write(Path::new(NFSD).join(seconds), "10").unwrap();
        }
        for state in ["/var/lib/nfs/v4recovery", "/var/lib/nfs/rpc_pipefs"] {
            create_dir_all(state).unwrap();
        }
        write("/var/lib/nfs/etab", "").unwrap();
        let options = "rw,no_root_squash,insecure,no_subtree_check,fsid=0";
        let export = format!("127.0.0.1:{}", arg(&served.at));
        run("exportfs", &["-i", "-o", options, &export]);
        // Without NFSv3, it needs no rpcbind.
        run("rpc.mountd", &["-N", "3"]);
        run("rpc.nfsd", &["-N", "3", "2"]);
        let dir = TempDir::with_prefix("hostloop-nfs-").unwrap();
        let at = dir.path().join("at");
        create_dir_all(&at).unwrap();
        run(
            "mount",
            &["-t", "nfs4", "-o", "vers=4.2", "127.0.0.1:/", arg(&at)],
        );
        Export {
            at,
            _dir: dir,
            _served: served,
        }
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        release("umount", &["-f", arg(&self.at)]);
        release("rpc.nfsd", &["0"]);
        release("exportfs", &["-u", "-a"]);
    }
}

/// NFS has no RENAME_NOREPLACE and, above ext4, no reflinks. Its locks hold for all clients.
#[test]
fn a_pool_on_nfs_takes_volumes_and_snapshots() {
    let filesystems = read_to_string("/proc/filesystems").unwrap();
    if !["nfs4", "nfsd"]
        .iter()
        .all(|fs| filesystems.contains(&format!("\t{fs}\n")))
    {
        return not_run("a pool on NFS", "this kernel has no NFS server");
    }
    let export = Export::new();
    let mut world = World::at("p", &export.at);
    world.open();
    let kind = (world.pool().kind(), world.pool().reflinks());
    assert_eq!(kind, (PoolKind::Directory, false));
    let made = world.create(thin("one", 64 * MI));
    let snapshot = world.snapshot(&made, "s");
    open_sound(&mut world, "nfs");
    let device = world.attach(&made);
    let attached = world.kernel.loop_info(device.minor).unwrap().unwrap();
    drop(device);
    world.kernel.loop_release(&attached).unwrap();
    world.pools().delete_snapshot(&snapshot.id).unwrap();
    world.pools().delete_volume(&made.id).unwrap();
    assert!(world.pools().volumes().is_empty());
    world.close();
}
