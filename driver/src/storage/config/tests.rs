use hostloop_report::pool_spec::{BLOCK_BYTES, MIN_IMAGE_BYTES};

use super::*;
use crate::kernel::{BLOCK_SIZE, FsType};

#[test]
fn reserves() {
    assert_eq!("5%".parse(), Ok(Reserve::Percent(5.0)));
    assert_eq!("0%".parse(), Ok(Reserve::Percent(0.0)));
    assert_eq!("2.5%".parse(), Ok(Reserve::Percent(2.5)));
    assert_eq!("10Gi".parse(), Ok(Reserve::Bytes(10 << 30)));
    for word in ["100%", "-1%", "%", "NaN%", "inf%", "x", ""] {
        assert!(word.parse::<Reserve>().is_err(), "{word}");
    }
}

#[test]
fn an_image_has_blocks_and_size_of_its_filesystem() {
    assert_eq!(BLOCK_BYTES, u64::from(BLOCK_SIZE));
    assert_eq!(MIN_IMAGE_BYTES, FsType::Xfs.minimum_bytes());
}
