//! Filesystems that mkfs makes and this machine's kernel can't mount.

use rstest::rstest;
use tonic::Code;

use super::Rig;
use crate::testkit::*;

/// What a kernel lacks differs between machines, but no loop device has sectors of 512 bytes.
#[rstest]
#[case::smaller_sectors("xfs", "-s size=512", Some("4096 byte sectors"))]
#[case::old_format("xfs", "-m crc=0", None)]
#[case::no_case("xfs", "-n version=ci", None)]
#[case::casefold("ext4", "-O casefold", None)]
#[case::quota("ext4", "-O quota,project", None)]
#[case::many_features("ext4", "-O encrypt,verity,inline_data,orphan_file,bigalloc", None)]
#[case::large_nodes("btrfs", "-n 65536", None)]
fn a_volume_that_is_created_can_be_mounted(
    #[case] fs: &str,
    #[case] options: &str,
    #[case] refused: Option<&str>,
) {
    let rig = Rig::new();
    let cap = mount(fs);
    let mut request = create_request("one");
    request.volume_capabilities = vec![cap.clone()];
    request.parameters = map(&[("mkfsOptions", options)]);
    match rig.try_create(request) {
        Ok(made) => {
            assert_eq!(refused, None);
            let id = made.volume_id;
            rig.stage(&id, "a", &cap).unwrap();
            std::fs::write(rig.staging("a").join("file"), "x").unwrap();
            rig.unstage(&id, "a").unwrap();
            rig.assert_clean(&id);
        }
        Err(error) => {
            let why = error.to_string();
            assert!(why.starts_with("parameters[\"mkfsOptions\"]"), "{why}");
            assert!(why.contains(refused.unwrap_or(fs)), "{why}");
            assert_eq!(code(Err::<(), _>(error)), Err(Code::InvalidArgument));
            for dir in ["volumes", "incoming"] {
                assert_eq!(
                    std::fs::read_dir(rig.path(dir)).unwrap().count(),
                    0,
                    "{dir}"
                );
            }
            rig.assert_nothing_left(options);
        }
    }
}

/// The usage that mkfs.xfs prints after an error is longer than the error.
#[test]
fn a_refused_option_is_explained_by_the_tool() {
    let rig = Rig::new();
    let mut request = create_request("one");
    request.volume_capabilities = vec![mount("xfs")];
    request.parameters = map(&[("mkfsOptions", "-s size=65536")]);
    let why = rig.try_create(request).unwrap_err().to_string();
    assert!(
        why.contains("Invalid value 65536 for -s size option"),
        "{why}"
    );
    assert!(!why.contains("Usage"), "{why}");
}
