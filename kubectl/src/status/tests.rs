use hostloop_fake_api::FakeApi;
use serde_json::json;

use super::*;
use crate::test_objects::{cluster_of, node_pod, plain};

const NS: &str = "/api/v1/namespaces/demo";
const PODS: &str = "/api/v1/namespaces/hostloop/pods";

/// A cluster with two claims and a node pod that may not be asked.
fn cluster_with_claims() -> FakeApi {
    let api = FakeApi::default();
    for name in ["data", "logs"] {
        api.set(
            &format!("{NS}/persistentvolumeclaims/{name}"),
            json!({"spec": {"storageClassName": "hostloop"}, "status": {"phase": "Pending"}}),
        );
    }
    api.set(
        "/apis/storage.k8s.io/v1/storageclasses/hostloop",
        json!({
            "provisioner": "hostloop.csi.dev", "volumeBindingMode": "WaitForFirstConsumer",
        }),
    );
    api.set(PODS, node_pod("hostloop-a", "n1"));
    api.hide(&format!("{PODS}/hostloop-a/exec"), 403);
    api
}

async fn lines(args: &Args, api: &FakeApi) -> Vec<String> {
    let report = report(args, &cluster_of(api)).await.unwrap();
    plain(&args.lines(&report).unwrap())
}

#[tokio::test]
async fn without_exec_the_api_server_is_shown() {
    let api = cluster_with_claims();
    let lines = lines(&Args::default(), &api).await;
    let whole = lines.join("\n");
    assert!(whole.contains("data   -"), "{whole}");
    assert!(whole.contains("waits for its first pod"), "{whole}");
    let end = "Not known\n  node n1: you may not create pods/exec in namespace hostloop; ask for \
               this right, or choose another --context";
    assert!(whole.ends_with(end), "{whole}");
}

#[tokio::test]
async fn names_select_rows() {
    let api = cluster_with_claims();
    let volume = |name: &str| json!({"name": name, "csi": {"driver": "hostloop.csi.dev"}});
    api.set(
        &format!("{NS}/pods/web"),
        json!({"spec": {"containers": [], "volumes": [volume("a"), volume("b")]}}),
    );
    for (name, rows) in [
        ("logs", vec!["logs"]),
        ("pod/web", vec!["pod/web/a", "pod/web/b"]),
        ("pod/web/b", vec!["pod/web/b"]),
        ("web", vec![]),
    ] {
        let args = Args {
            names: vec![name.to_owned()],
            ..Args::default()
        };
        let report = report(&args, &cluster_of(&api)).await.unwrap();
        let names = report.volumes.iter();
        let names = names.filter_map(|row| row.claim.clone().or_else(|| row.inline_name()));
        assert_eq!(names.collect::<Vec<_>>(), rows, "{name}");
    }
}

fn named(names: &[&str]) -> Args {
    Args {
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        ..Args::default()
    }
}

#[tokio::test]
async fn a_name_that_nothing_has_is_an_error() {
    let api = cluster_with_claims();
    let cluster = cluster_of(&api);
    run(&named(&["data", "logs"]), &cluster).await.unwrap();
    let error = run(&named(&["nosuch", "data"]), &cluster)
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "no claim, snapshot or inline volume of hostloop in namespace demo is named nosuch; \
         `kubectl hostloop status -A` shows those of all namespaces"
    );
    let everywhere = Args {
        all_namespaces: true,
        ..named(&["nosuch"])
    };
    let error = run(&everywhere, &cluster).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "no claim, snapshot or inline volume of hostloop in any namespace is named nosuch"
    );
    // Labels select among the names.
    let labelled = Args {
        selector: Some("app=web".to_owned()),
        ..named(&["nosuch"])
    };
    run(&labelled, &cluster).await.unwrap();
    api.hide(&format!("{NS}/pods"), 403);
    let error = run(&named(&["nosuch"]), &cluster).await.unwrap_err();
    let said = error.to_string();
    assert!(
        said.starts_with("can't tell whether anything in namespace demo is named nosuch: "),
        "{said}"
    );
}

#[tokio::test]
async fn a_cluster_without_hostloop() {
    let api = cluster_with_claims();
    api.take("pods/hostloop-a");
    let args = Args {
        output: OutputArgs {
            json: true,
            ..OutputArgs::default()
        },
        ..Args::default()
    };
    let lines = lines(&args, &api).await;
    let report: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
    let missing = report["missing"][0].as_str().unwrap();
    assert!(
        missing.contains("no node pods in namespace hostloop"),
        "{missing}"
    );
    assert_eq!(report["volumes"][0]["state"], "pending");
}

#[tokio::test]
async fn all_namespaces_are_asked() {
    let api = cluster_with_claims();
    api.hide("/api/v1/pods", 403);
    let args = Args {
        all_namespaces: true,
        ..Args::default()
    };
    let lines = lines(&args, &api).await;
    let right = "  you may not list pods in the whole cluster; ask for this right, or choose \
                 another --context";
    assert!(lines.iter().any(|line| line == right), "{lines:?}");
}
