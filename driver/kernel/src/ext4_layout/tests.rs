use super::*;

const MI: u64 = 1 << 20;
const GI: u64 = 1 << 30;
const TI: u64 = 1 << 40;

/// What mke2fs makes of so many bytes, with this number of reserved blocks.
fn made(bytes: u64, reserved_blocks: u64) -> Ext4Layout {
    Ext4Layout {
        blocks: bytes / 4096,
        block_bytes: 4096,
        first_block: 0,
        blocks_per_group: 32768,
        inodes_per_group: 8192,
        inode_bytes: 256,
        descriptor_bytes: 64,
        reserved_blocks,
        cluster_blocks: 1,
        is_wide: true,
        meta_bg: false,
        sparse_super: true,
        sparse_super2: None,
    }
}

#[test]
fn an_unmounted_ext4_grows_as_far_as_blocks_are_reserved() {
    use Ext4Growth::{Done, Mounted, Not, Unmounted};
    let not = |most| Not(NoGrowth::NotPermitted { most });
    let feature = |name, most| Not(NoGrowth::Feature { name, most });
    let (small, medium, large) = (made(8 * MI, 0), made(16 * MI, 1), made(100 * GI, 1024));
    let bigalloc = Ext4Layout {
        cluster_blocks: 16,
        ..large
    };
    let two_copies = Ext4Layout {
        sparse_super2: Some([1, 799]),
        ..large
    };
    let neither = Ext4Layout {
        cluster_blocks: 16,
        ..two_copies
    };
    let meta_bg = Ext4Layout {
        meta_bg: true,
        ..small
    };
    // 1,024-byte blocks, 32-byte descriptors, and groups of 8 MiB.
    let fine = Ext4Layout {
        blocks: 8192,
        block_bytes: 1024,
        first_block: 1,
        blocks_per_group: 8192,
        inodes_per_group: 2048,
        descriptor_bytes: 32,
        reserved_blocks: 31,
        is_wide: false,
        ..small
    };
    let many_inodes = Ext4Layout {
        inodes_per_group: 32768,
        ..large
    };
    let narrow = Ext4Layout {
        is_wide: false,
        descriptor_bytes: 32,
        ..large
    };
    let most_narrow = 16 * TI - 4096;
    // filesystem, bytes of the device, whether a mounted one may grow → how it grows
    let table = [
        (small, 8 * MI, false, Done),
        (small, 4 * MI, true, Done),
        (small, 8 * GI, false, Unmounted),
        (small, 8 * GI, true, Mounted),
        (small, 9 * GI, false, not(8 * GI)),
        (small, 20 * GI, false, not(8 * GI)),
        (small, 20 * GI, true, Mounted),
        (medium, 16 * GI, false, Unmounted),
        (medium, 20 * GI, false, not(16 * GI)),
        // A last group without space for its own tables is left out.
        (small, 8 * GI + 2 * MI, false, Unmounted),
        (small, 8 * GI + 2 * MI, true, Mounted),
        (made(128 * MI, 15), 128 * MI + 4096, false, Done),
        (made(128 * MI, 15), 128 * MI + 2 * MI, true, Done),
        (made(128 * MI, 15), 128 * MI + 4 * MI, true, Mounted),
        (large, 8 * TI, false, Unmounted),
        (large, 9 * TI, false, not((13 + 1024) * 8 * GI)),
        (bigalloc, 200 * GI, true, Mounted),
        (bigalloc, 200 * GI, false, not(100 * GI)),
        (bigalloc, 100 * GI + 4096, false, Done),
        (two_copies, 200 * GI, true, Unmounted),
        (two_copies, 200 * GI, false, Unmounted),
        (
            two_copies,
            9 * TI,
            true,
            feature("sparse_super2", 1037 * 8 * GI),
        ),
        (neither, 200 * GI, true, feature("sparse_super2", 100 * GI)),
        (meta_bg, 20 * GI, false, Unmounted),
        (meta_bg, 9 * TI, false, Unmounted),
        (fine, 8 * GI + 1024, false, Unmounted),
        (fine, 9 * GI, false, not(8 * GI + 1024)),
        (
            many_inodes,
            17 * TI,
            true,
            Not(NoGrowth::TooLarge {
                most: 16 * TI - 128 * MI,
            }),
        ),
        (many_inodes, 16 * TI, true, Mounted),
        (narrow, 16 * TI, true, Mounted),
        (
            narrow,
            17 * TI,
            true,
            Not(NoGrowth::TooLarge { most: most_narrow }),
        ),
        (
            large,
            u64::MAX,
            true,
            Not(NoGrowth::TooLarge {
                most: (u64::from(u32::MAX) / 8192) * 128 * MI,
            }),
        ),
    ];
    for (layout, bytes, mounted, expected) in table {
        assert_eq!(
            layout.growth(bytes, mounted),
            expected,
            "{bytes} {mounted} {layout:?}"
        );
    }
}

#[test]
fn a_refusal_says_the_limit_and_what_to_do() {
    let most = 8 * GI;
    for (why, says) in [
        (NoGrowth::NotPermitted { most }, "CAP_SYS_RESOURCE"),
        (
            NoGrowth::Feature {
                name: "sparse_super2",
                most,
            },
            "without -O sparse_super2",
        ),
        (NoGrowth::TooLarge { most }, "number of inodes"),
    ] {
        assert_eq!(why.most(), most);
        let text = why.to_string();
        assert!(
            text.contains(says) && text.contains("8 GiB (8589934592 bytes) at most"),
            "{text}"
        );
        let advice = ["request less", "into a new volume"];
        assert!(advice.iter().all(|words| text.contains(words)), "{text}");
    }
}
