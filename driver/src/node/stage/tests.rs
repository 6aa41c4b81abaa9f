use super::*;
use crate::kernel::FsType;
use crate::storage::AccessMode;

fn mount(fs: FsType) -> Capability {
    Capability {
        access: Access::Mount {
            fs,
            flags: Vec::new(),
            group: None,
        },
        mode: AccessMode::SingleNodeWriter,
    }
}

fn block() -> Capability {
    Capability {
        access: Access::Block,
        mode: AccessMode::SingleNodeWriter,
    }
}

fn staged(path: &str, capability: &Capability) -> Option<Stage> {
    Some(Stage {
        path: path.into(),
        capability: capability.clone(),
        minor: None,
        read_only_loops: Default::default(),
    })
}

#[derive(Debug, PartialEq)]
enum Says {
    Begin,
    Finish,
    AlreadyExists,
    FailedPrecondition,
}

fn says(stage: Option<&Stage>, seen: &Seen, path: &str, capability: &Capability) -> Says {
    let wanted = Wanted {
        path: path.into(),
        capability: capability.clone(),
        read_only: false,
    };
    match decide(stage, seen, &wanted) {
        Ok(StageAction::Begin) => Says::Begin,
        Ok(StageAction::Finish) => Says::Finish,
        Err(Error::AlreadyExists(_)) => Says::AlreadyExists,
        Err(Error::FailedPrecondition(_)) => Says::FailedPrecondition,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_request_is_judged_by_what_the_kernel_still_shows() {
    let seen = |attached, mounted: &[&str]| Seen {
        attached,
        mounted_at: mounted.iter().map(PathBuf::from).collect(),
    };
    let (ext4, xfs) = (mount(FsType::Ext4), mount(FsType::Xfs));
    let nothing = seen(false, &[]);
    let idle = seen(true, &[]);
    let at_a = seen(true, &["/a"]);
    let a_and_pod = seen(true, &["/a", "/pod"]);
    let pod = seen(true, &["/pod"]);
    use Says::*;
    // recorded staging, kernel state, request
    let table = [
        (None, &nothing, "/a", &ext4, Begin),
        (None, &nothing, "/a", &block(), Begin),
        (None, &idle, "/a", &ext4, Begin),
        (None, &idle, "/a", &block(), Begin),
        (None, &at_a, "/a", &ext4, Finish),
        (None, &at_a, "/b", &ext4, FailedPrecondition),
        (None, &at_a, "/a", &block(), FailedPrecondition),
        (staged("/a", &ext4), &at_a, "/a", &ext4, Finish),
        (staged("/a", &ext4), &a_and_pod, "/a", &ext4, Finish),
        (staged("/a", &ext4), &at_a, "/a", &xfs, AlreadyExists),
        (staged("/a", &ext4), &at_a, "/a", &block(), AlreadyExists),
        (staged("/a", &ext4), &at_a, "/b", &ext4, FailedPrecondition),
        // The record has only an intent, or the node was restarted.
        (staged("/a", &ext4), &nothing, "/a", &ext4, Begin),
        (staged("/a", &ext4), &nothing, "/b", &xfs, Begin),
        (staged("/a", &ext4), &idle, "/b", &block(), Begin),
        (staged("/a", &block()), &nothing, "/b", &block(), Begin),
        // The staging mount is missing, but a pod's mount is not.
        (staged("/a", &ext4), &pod, "/a", &ext4, FailedPrecondition),
        (staged("/a", &block()), &idle, "/a", &block(), Finish),
        (
            staged("/a", &block()),
            &idle,
            "/b",
            &block(),
            FailedPrecondition,
        ),
        (staged("/a", &block()), &idle, "/a", &ext4, AlreadyExists),
    ];
    for (stage, seen, path, capability, expected) in table {
        let got = says(stage.as_ref(), seen, path, capability);
        assert_eq!(got, expected, "{stage:?} {seen:?} {path} {capability:?}");
    }
}
