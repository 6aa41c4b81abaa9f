//! Discovery: the kinds of an API group version, and kinds that the server lacks.

use serde_json::{Value, json};
use tonic::codegen::http::Response;

use super::Asked;
use super::path::{GROUP_SNAPSHOTS, SNAPSHOTS, STORAGE, Target};
use super::store::{Failure, Store};
use super::watch::{Stream, response};

/// The kinds of the groups that the controllers ask for.
const KINDS: [(&str, &[&str]); 3] = [
    (
        STORAGE,
        &[
            "csidrivers",
            "csinodes",
            "csistoragecapacities",
            "storageclasses",
            "volumeattachments",
            "volumeattributesclasses",
        ],
    ),
    (SNAPSHOTS, &["volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"]),
    (
        GROUP_SNAPSHOTS,
        &["volumegroupsnapshotclasses", "volumegroupsnapshotcontents", "volumegroupsnapshots"],
    ),
];

impl Store {
    /// Answers a request for the kinds of a group version, or for a kind that is not served.
    pub(super) fn served(&self, asked: &Asked) -> Option<Response<Stream>> {
        if let Some(target) = Target::of(&asked.path) {
            let lacks = self.lacking.contains(target.plural.as_str());
            return lacks.then(|| Failure::no_resource().response());
        }
        let group =
            asked.path.strip_prefix("/apis/").filter(|rest| rest.matches('/').count() == 1)?;
        let known = KINDS.iter().find(|(path, _)| *path == asked.path);
        let kinds = known.into_iter().flat_map(|(_, kinds)| kinds.iter());
        let kinds = kinds.filter(|kind| !self.lacking.contains(*kind));
        let resources: Vec<Value> = kinds.map(|kind| json!({"name": kind})).collect();
        if resources.is_empty() {
            return Some(Failure::no_resource().response());
        }
        let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group,
                          "resources": resources});
        Some(response(200, &list))
    }
}
