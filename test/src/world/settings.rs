//! Checks the effect of volume parameters in the kernel.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::driver::Driver;
use crate::leaks::{mounted, mountinfo};
use crate::pools::MIB;

/// Checks that the filesystem volume mounted at this target matches its parameters.
pub(super) fn check(driver: &Driver, target: &Path, parameters: &[(&str, &str)], mib: u64) {
    let table = mountinfo(driver.pid());
    let mount = mounted(&table).into_iter().rfind(|m| m.at == target);
    let mount = mount.unwrap_or_else(|| panic!("nothing is mounted at {}", target.display()));
    let device = mount.source.strip_prefix("/dev/");
    let device = device.filter(|_| mount.on_loop()).expect("a loop device");
    let attribute = |name: &str| {
        let path = format!("/sys/block/{device}/{name}");
        let value = std::fs::read_to_string(&path);
        value
            .unwrap_or_else(|e| panic!("{path}: {e}"))
            .trim_end()
            .to_owned()
    };
    for (key, value) in parameters {
        match *key {
            "discard" => assert_eq!(
                discards(&table, target),
                *value == "true",
                "discard={value} at {}",
                target.display()
            ),
            "directIO" => {
                let expected = if *value == "true" { "1" } else { "0" };
                assert_eq!(attribute("loop/dio"), expected, "directIO={value}");
            }
            "readAheadKiB" => {
                assert_eq!(attribute("queue/read_ahead_kb"), *value, "readAheadKiB");
            }
            "provisioning" if *value == "thick" => {
                let image = driver.view(Path::new(&attribute("loop/backing_file")));
                let metadata = std::fs::metadata(&image);
                let metadata = metadata.unwrap_or_else(|e| panic!("{}: {e}", image.display()));
                let allocated = metadata.blocks() * 512;
                assert!(
                    allocated >= mib * MIB,
                    "{allocated} bytes of {mib} MiB are taken"
                );
            }
            _ => {}
        }
    }
}

/// True if the filesystem mounted at this path discards deleted blocks.
fn discards(mountinfo: &str, target: &Path) -> bool {
    let at = target.to_str().expect("a plain path");
    let line = mountinfo
        .lines()
        .rfind(|line| line.split(' ').nth(4) == Some(at));
    let options = line
        .and_then(|line| line.rsplit(' ').next())
        .unwrap_or_default();
    options.split(',').any(|option| option == "discard")
}
