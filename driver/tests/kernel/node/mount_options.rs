//! The mount options that a class may set, on this machine's kernel.

use hostloop_driver::kernel::{FsType, check_mount_options};

use super::Rig;
use crate::testkit::*;

/// Each of these options in a mount of its own, with values that fit a new filesystem.
const EXT4: &str = "acl auto_da_alloc auto_da_alloc=0 barrier barrier=1 block_validity bsddf bsdgroups \
     commit=30 data=journal data=ordered data=writeback data_err=abort dax=never delalloc \
     dioread_lock dioread_nolock discard errors=continue errors=remount-ro grpid grpquota \
     init_itable init_itable=20 inlinecrypt inode_readahead_blks=16 data=writeback,journal_async_commit \
     journal_checksum journal_ioprio=3 max_batch_time=15000 max_dir_size_kb=64 mb_optimize_scan=1 \
     min_batch_time=10 minixdf no_mbcache no_prefetch_block_bitmaps noacl noauto_da_alloc nobarrier \
     noblock_validity nodelalloc nodioread_nolock nodiscard nogrpid noinit_itable \
     nojournal_checksum nombcache noquota nouid32 nouser_xattr nowarn_on_error \
     prefetch_block_bitmaps quota resgid=1000 resuid=1000 stripe=16 sysvgroups user_xattr usrquota";
const XFS: &str = "allocsize=64k attr2 bsdgroups dax=never discard filestreams gqnoenforce gquota grpid \
     grpquota ikeep inode32 inode64 largeio lifetime logbsize=64k logbufs=4 noalign nodiscard \
     nogrpid noikeep nolargeio nolifetime noquota nouuid pqnoenforce pquota prjquota qnoenforce \
     quota swalloc sysvgroups uqnoenforce uquota usrquota wsync";
const BTRFS: &str = "acl autodefrag barrier clear_cache commit=30 compress compress=zlib:3 compress=zstd \
     compress-force compress-force=lzo datacow datasum discard discard=sync enospc_debug \
     flushoncommit max_inline=2k metadata_ratio=2 noacl noautodefrag nobarrier nodatacow nodatasum \
     nodiscard noenospc_debug noflushoncommit nossd nossd_spread notreelog rescan_uuid_tree \
     skip_balance space_cache=v2 ssd ssd_spread subvol=/ subvolid=5 thread_pool=2 treelog \
     user_subvol_rm_allowed";
const ALL: &str = "ro rw suid nosuid dev nodev exec noexec sync async dirsync noatime atime nodiratime \
     diratime relatime strictatime lazytime nolazytime silent loud defaults nofail x-mine";

/// Kernels can be built without quotas and attributes, and `nolifetime` needs another XFS.
const MAY_FAIL: &str = "gqnoenforce gquota grpquota noacl nolifetime nouser_xattr pqnoenforce pquota \
     prjquota qnoenforce quota uqnoenforce uquota usrquota";

/// Kernels of other versions lack some, and say that they are unknown.
#[test]
fn what_is_allowed_mounts_where_the_kernel_knows_it() {
    for (fs, own) in [
        (FsType::Ext4, EXT4),
        (FsType::Xfs, XFS),
        (FsType::Btrfs, BTRFS),
    ] {
        let rig = Rig::new();
        let id = rig.volume(on(fs), 32 * MI);
        let mut failed = Vec::new();
        for option in own.split_whitespace().chain(ALL.split_whitespace()) {
            assert_eq!(check_mount_options(fs, &[option.to_owned()]), Ok(()));
            match rig.stage(id, "a", &with_flags(mount(fs.as_str()), &[option])) {
                Ok(()) => rig.unstage(id, "a").unwrap(),
                Err(error) => {
                    rig.assert_clean(id);
                    let is_known = !error.to_string().contains("Unknown parameter");
                    if is_known && !MAY_FAIL.split(' ').any(|one| one == option) {
                        failed.push(format!("{option}: {error}"));
                    }
                }
            }
        }
        assert!(failed.is_empty(), "{fs}: {failed:#?}");
    }
}
