//! The values of the chart: what they do beyond kustomize, and mistakes in them.

use hostloop_report::driver_name;
use hostloop_test::machine::{root, text};
use hostloop_test::{child, tools};
use serde_json::{Value, json};

use crate::objects::{helm, of_helm, pod};

/// Mistakes, and a word of the message that each causes.
#[test]
fn a_mistake_is_an_error_that_names_the_value() {
    let pool = |pool: Value| json!({"pools": [pool]});
    let cases = [
        (json!({"kubletDir": "/var/lib/kubelet"}), "kubletDir"),
        (json!({"kubeletDir": "var/lib/kubelet"}), "kubeletDir"),
        (json!({"driverName": null}), "driverName"),
        (json!({"driverName": "A.b"}), "driverName"),
        (json!({"attach": "yes"}), "attach"),
        (json!({"faults": {"enabled": true}}), "faults"),
        (
            json!({"sharedKernels": {"kernel": ["a", "b"]}}),
            "set attach: true",
        ),
        (
            json!({"attach": true, "sharedKernels": {"k": ["a"], "l": ["b", "a"]}}),
            "named twice: a, b, a",
        ),
        (
            json!({"attach": true, "sharedKernels": {"kernel": "a b"}}),
            "sharedKernels",
        ),
        (
            json!({"attach": true, "sharedKernels": {"Kernel": ["a"]}}),
            "Kernel",
        ),
        (json!({"image": {"pullpolicy": "Never"}}), "pullpolicy"),
        (json!({"image": {"pullPolicy": "Sometimes"}}), "pullPolicy"),
        (json!({"image": {"digest": "0123"}}), "digest"),
        (json!({"pools": []}), "pools"),
        (pool(json!({"name": "default"})), "path"),
        (
            pool(json!({"name": "default", "path": "/p", "size": "1Gi"})),
            "size",
        ),
        (
            pool(json!({"name": "default", "path": "/p", "options": ["imgae=1Gi"]})),
            "options",
        ),
        (
            pool(json!({"name": "default", "path": "/p", "options": "image=1Gi"})),
            "options",
        ),
        (
            json!({"pools": [{"name": "a", "path": "/p"}, {"name": "a", "path": "/q"}]}),
            "each needs a name of its own",
        ),
        (
            json!({"classes": {"hostloop-ext4": {"reclaim": "Retain"}}}),
            "reclaim",
        ),
        (
            json!({"classes": {"hostloop-ext4": {"parameters": {"thick": true}}}}),
            "thick",
        ),
        (
            json!({"classes": {"hostloop-ext4": {"default": true},
                "hostloop-xfs": {"default": true}}}),
            "only one may be the default, and hostloop-ext4, hostloop-xfs are",
        ),
        (json!({"resources": {"nodes": {}}}), "nodes"),
        (json!({"resources": {"node": {"limit": {}}}}), "limit"),
        (json!({"podMonitor": true}), "podMonitor"),
        (json!({"networkPolicy": {}}), "networkPolicy"),
        (json!({"args": {"node": ["reserve=5%"]}}), "args"),
    ];
    for (values, word) in &cases {
        let error = helm(values, &[]).expect_err(&values.to_string());
        assert!(error.contains(word), "{values}: no {word:?} in {error}");
    }
    println!("{} mistakes refused", cases.len());
}

#[test]
fn further_pools_are_in_the_environment_and_volumes() {
    let objects = of_helm(&json!({"pools": [
        {"name": "slow", "path": "/srv/slow"},
        {"name": "fast", "path": "/srv/fast", "options": ["image=10Gi", "preallocate"]},
        {"name": "disk", "path": "/dev/vdb"},
    ]}));
    let (container, pod) = pod(&objects, "DaemonSet hostloop/hostloop");
    let pools = json!({"name": "HOSTLOOP_POOL",
        "value": "slow=$(POOL_DIR)$(POOL_OPTIONS);fast=/srv/fast,image=10Gi,preallocate;disk=/dev/vdb"});
    let env = container["env"].as_array().expect("it has variables");
    assert!(env.contains(&pools), "{env:?}");
    // A device is in /dev, which the container has.
    let paths = |list: &Value, at: &str| {
        let paths = list.as_array().expect("a list").iter();
        paths
            .map(|item| item.pointer(at).cloned().unwrap_or_default())
            .collect::<Vec<_>>()
    };
    let expected = ["/dev", "/var/lib/kubelet", "/srv/slow", "/srv/fast"].map(Value::from);
    assert_eq!(paths(&pod["volumes"], "/hostPath/path"), expected);
    assert_eq!(paths(&container["volumeMounts"], "/mountPath"), expected);
}

#[test]
fn values_reach_their_objects() {
    let digest = format!("sha256:{}", "ab".repeat(32));
    let objects = of_helm(&json!({
        "image": {"repository": "r.example.com/h", "digest": digest,
            "pullPolicy": "Always", "pullSecrets": [{"name": "registry"}]},
        "classes": {"hostloop-xfs": null, "mine": {"reclaimPolicy": "Retain",
            "volumeBindingMode": "Immediate", "allowVolumeExpansion": false,
            "parameters": {"pool": "fast"}, "mountOptions": ["noatime"]}},
        "args": {"node": ["--reserve=10%"], "controller": ["--gone-node-grace=1m"]},
        "resources": {"controller": {"limits": {"memory": "1Gi"}}},
        "nodeSelector": {"disks": "many"},
        "tolerations": [],
        "networkPolicy": false,
        "podMonitor": {"enabled": true, "interval": "5s", "labels": {"release": "p"}},
        "dashboard": {"enabled": true},
    }));
    let image = format!("r.example.com/h:{}@{digest}", env!("CARGO_PKG_VERSION"));
    for key in [
        "DaemonSet hostloop/hostloop",
        "Deployment hostloop/hostloop-controller",
    ] {
        let (container, pod) = pod(&objects, key);
        assert_eq!(container["image"], image);
        assert_eq!(container["imagePullPolicy"], "Always");
        assert_eq!(pod["imagePullSecrets"], json!([{"name": "registry"}]));
    }
    let (node, node_pod) = pod(&objects, "DaemonSet hostloop/hostloop");
    let (controller, _) = pod(&objects, "Deployment hostloop/hostloop-controller");
    let last = |container: &Value| container["args"].as_array().and_then(|a| a.last().cloned());
    assert_eq!(last(node), Some(json!("--reserve=10%")));
    assert_eq!(last(controller), Some(json!("--gone-node-grace=1m")));
    assert_eq!(controller["resources"]["limits"]["memory"], "1Gi");
    assert_eq!(node_pod["nodeSelector"]["disks"], "many");
    assert_eq!(node_pod["tolerations"], json!([]));
    let class = &objects["StorageClass /mine"];
    assert_eq!(class["reclaimPolicy"], "Retain");
    assert_eq!(class["volumeBindingMode"], "Immediate");
    assert_eq!(class["allowVolumeExpansion"], false);
    assert_eq!(class["mountOptions"], json!(["noatime"]));
    assert_eq!(class["parameters"], json!({"pool": "fast"}));
    assert!(!objects.contains_key("StorageClass /hostloop-xfs"));
    assert!(!objects.contains_key("NetworkPolicy hostloop/hostloop"));
    let monitor = &objects["PodMonitor hostloop/hostloop"];
    assert_eq!(monitor["metadata"]["labels"]["release"], "p");
    assert_eq!(monitor["spec"]["podMetricsEndpoints"][0]["interval"], "5s");
    let dashboard = &objects["ConfigMap hostloop/hostloop-dashboard"]["data"]["hostloop.json"];
    let dashboard: Value = serde_json::from_str(dashboard.as_str().expect("a text")).expect("JSON");
    assert_eq!(dashboard["title"], "hostloop");
}

#[test]
fn the_notes_say_what_to_type_next() {
    let chart = root().join("deploy/chart/hostloop");
    let notes = |sets: &[&str]| {
        let install = [
            "install",
            "mine",
            text(&chart),
            "--namespace=store",
            "--dry-run=client",
        ];
        let sets: Vec<_> = sets.iter().flat_map(|set| ["--set", set]).collect();
        let said = tools::run_helm(&[&install[..], &sets].concat());
        let said = said.unwrap_or_else(|why| panic!("{why}"));
        said.split_once("\nNOTES:\n")
            .expect("there are notes")
            .1
            .to_owned()
    };
    let plain = notes(&[]);
    for line in [
        "    kubectl --namespace store rollout status daemonset/hostloop",
        "    helm test mine --namespace store",
        "    helm upgrade mine … --set snapshotController=true",
        "    kind load image-archive hostloop.tar",
        "    kubectl label namespace store pod-security.kubernetes.io/enforce=privileged",
    ] {
        assert!(
            plain.lines().any(|known| known == line),
            "no {line:?} in\n{plain}"
        );
    }
    let complete = notes(&[
        "snapshotController=true",
        "classes.hostloop-ext4.default=true",
        "image.repository=r.example.com/h",
    ]);
    assert!(
        complete.contains("Claims without a class get hostloop-ext4."),
        "{complete}"
    );
    for word in ["snapshotController=true", "kind load"] {
        assert!(!complete.contains(word), "{word} in\n{complete}");
    }
}

/// The chart and `scripts/render` take the driver names that `kubectl hostloop install` takes.
#[test]
fn one_rule_for_driver_names() {
    let functions = root().join("scripts/render-lib/driver-name.sh");
    let check = "die() { exit 1; }; . \"$1\"; check_driver_name \"$2\"";
    for name in [
        "hostloop.csi.dev",
        "d",
        "a-1.b",
        "1.5",
        &"x".repeat(63),
        "",
        "-a",
        "a.",
        "a..b",
        "a.-b",
        "a-.b",
        "a_b",
        "A",
        &"x".repeat(64),
    ] {
        let is_valid = driver_name::check_in_manifests(name).is_ok();
        let rendered = helm(&json!({"driverName": name}), &["--no-hooks"]);
        assert_eq!(rendered.is_ok(), is_valid, "the chart: {name:?}");
        if let Err(error) = rendered {
            assert!(error.contains("driverName"), "{name:?}: {error}");
        }
        let checked = child::command("bash")
            .args(["-euc", check, "bash", text(&functions), name])
            .status()
            .expect("bash runs");
        assert_eq!(checked.success(), is_valid, "scripts/render: {name:?}");
    }
}

/// Helm's own checks.
#[test]
fn the_chart_has_no_lint() {
    let chart = root().join("deploy/chart/hostloop");
    tools::run_helm(&["lint", "--strict", text(&chart)]).unwrap_or_else(|why| panic!("{why}"));
}
