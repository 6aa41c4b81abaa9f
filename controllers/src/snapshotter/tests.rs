use serde_json::{Value, json};
use tonic::Status;

use super::*;
use crate::queue::Outcome;
use crate::testing::{self, read, with as and};
use rig::{Rig, class, content, deleted, mark, patch, status};

mod groups;
mod rig;
mod scopes;
mod singles;

type Single = Rig<SingleContents>;
type Group = Rig<GroupContents>;

const GET_SECRET: &str = "GET safe/secrets/key";

fn options() -> Options {
    crate::testing::options()
}

fn snapshot(ready: bool) -> hostloop_proto::csi::Snapshot {
    hostloop_proto::csi::Snapshot {
        snapshot_id: "h".to_owned(),
        source_volume_id: "v".to_owned(),
        size_bytes: 10,
        ready_to_use: ready,
        ..Default::default()
    }
}

#[test]
fn lengths_of_names() {
    for (length, fine) in [(-1, true), (1, true), (36, true), (0, false), (-2, false)] {
        let single = Options {
            snapshot_name_uuid_length: length,
            ..options()
        };
        let group = Options {
            groupsnapshot_name_uuid_length: length,
            ..options()
        };
        assert_eq!(single.check().is_ok(), fine, "{length}");
        assert_eq!(group.check().is_ok(), fine, "{length}");
    }
}

#[test]
fn flags_as_upstream_has_them() {
    let flags = "--snapshot-name-prefix=s --snapshot-name-uuid-length=8 \
                 --groupsnapshot-name-prefix=g --groupsnapshot-name-uuid-length -1";
    for (flags, single, group) in [
        ("", ("snapshot", -1), ("groupsnapshot", -1)),
        (flags, ("s", 8), ("g", -1)),
    ] {
        let words: Vec<&str> = flags.split_whitespace().collect();
        let read: Options = testing::parse(&words);
        let found = (
            read.snapshot_name_prefix.as_str(),
            read.snapshot_name_uuid_length,
        );
        assert_eq!(found, single, "{flags}");
        let prefix = read.groupsnapshot_name_prefix.as_str();
        let found = (prefix, read.groupsnapshot_name_uuid_length);
        assert_eq!(found, group, "{flags}");
    }
}
