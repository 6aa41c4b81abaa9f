use super::*;
use crate::kernel::FsType;
use crate::storage::Capability;
use crate::testkit::{code, mounted, on, raw, stage_at};
use tonic::Code;

fn staged(path: &str, capability: &Capability) -> Option<Box<Stage>> {
    Some(stage_at(path, capability.clone(), None))
}

#[test]
fn a_request_is_judged_by_what_the_kernel_still_shows() {
    let seen = |attached, mounted: &[&str]| StateBefore {
        attached,
        mounted_at: mounted.iter().map(PathBuf::from).collect(),
    };
    let (ext4, block) = (mounted(), raw());
    let xfs = Capability {
        access: on(FsType::Xfs),
        ..mounted()
    };
    let nothing = seen(false, &[]);
    let idle = seen(true, &[]);
    let at_a = seen(true, &["/a"]);
    let a_and_pod = seen(true, &["/a", "/pod"]);
    let pod = seen(true, &["/pod"]);
    let begin = Ok(StageAction::Begin);
    let finish = Ok(StageAction::Finish);
    let elsewhere = Err(Code::FailedPrecondition);
    let exists = Err(Code::AlreadyExists);
    // recorded staging, kernel state, request
    let table = [
        (None, &nothing, "/a", &ext4, begin),
        (None, &nothing, "/a", &block, begin),
        (None, &idle, "/a", &ext4, begin),
        (None, &idle, "/a", &block, begin),
        (None, &at_a, "/a", &ext4, finish),
        (None, &at_a, "/b", &ext4, elsewhere),
        (None, &at_a, "/a", &block, elsewhere),
        (staged("/a", &ext4), &at_a, "/a", &ext4, finish),
        (staged("/a", &ext4), &a_and_pod, "/a", &ext4, finish),
        (staged("/a", &ext4), &at_a, "/a", &xfs, exists),
        (staged("/a", &ext4), &at_a, "/a", &block, exists),
        (staged("/a", &ext4), &at_a, "/b", &ext4, elsewhere),
        // The record has only an intent, or the node was restarted.
        (staged("/a", &ext4), &nothing, "/a", &ext4, begin),
        (staged("/a", &ext4), &nothing, "/b", &xfs, begin),
        (staged("/a", &ext4), &idle, "/b", &block, begin),
        (staged("/a", &block), &nothing, "/b", &block, begin),
        // The staging mount is missing, but a pod's mount is not.
        (staged("/a", &ext4), &pod, "/a", &ext4, elsewhere),
        (staged("/a", &block), &idle, "/a", &block, finish),
        (staged("/a", &block), &idle, "/b", &block, elsewhere),
        (staged("/a", &block), &idle, "/a", &ext4, exists),
    ];
    for (stage, seen, path, capability, expected) in table {
        let requested = Requested {
            path: path.into(),
            capability: capability.clone(),
            read_only: false,
        };
        let got = code(decide(stage.as_deref(), seen, &requested));
        assert_eq!(got, expected, "{stage:?} {seen:?} {path} {capability:?}");
    }
}
