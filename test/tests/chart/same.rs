//! The chart and kustomize describe the same objects.

use serde_json::{Value, json};

use crate::objects::{helm, of_helm, of_kustomize, read};

/// Values of the chart, and the arguments of `scripts/render` that say the same.
fn cases() -> Vec<(&'static str, Value, Vec<&'static str>)> {
    let kubelet = "/var/lib/k0s/kubelet";
    let pool = |path: &str, options: &[&str]| json!([{"name": "default", "path": path, "options": options}]);
    let k0s = json!({"kubeletDir": kubelet, "snapshotController": true});
    let of_kind = pool("/var/lib/hostloop", &["image=20Gi"]);
    let kind = json!({"snapshotController": true, "pools": of_kind});
    let inline = json!({"pools": pool("/srv/p", &["image=1Gi", "inline"])});
    let of_pool = vec![
        "--pool-dir",
        "/srv/p",
        "--pool-options",
        ",image=1Gi,inline",
    ];
    let image = json!({"image": {"repository": "registry.example.com/hostloop", "tag": "9"}});
    let of_image = vec![
        "--image",
        "registry.example.com/hostloop:9",
        "--component",
        "registry",
    ];
    let class = json!({"classes": {"hostloop-ext4": {"default": true}}});
    let monitoring = json!({"podMonitor": {"enabled": true}, "prometheusRule": {"enabled": true}});
    let controllers = "*,-health";
    let snapshots = json!({"snapshotController": true});
    let names = ["kind-control-plane", "kind-worker"].map(str::to_owned);
    let further = (2..16).map(|n| format!("kind-worker{n}"));
    let names: Vec<String> = names.into_iter().chain(further).collect();
    let shared_class = |filesystem: &str| json!({"parameters": {"csi.storage.k8s.io/fstype": filesystem, "reach": "kernel"}});
    let shared = json!({
        "attach": true,
        "snapshotController": true,
        "pools": pool("/var/lib/hostloop", &["image=20Gi"]),
        "sharedKernels": {"kernel": names},
        "classes": {"hostloop-shared-ext4": shared_class("ext4"), "hostloop-shared-xfs": shared_class("xfs")},
    });
    vec![
        ("the defaults", json!({}), vec![]),
        (
            "attach",
            json!({"attach": true}),
            vec!["--overlay", "attach"],
        ),
        (
            "snapshotController",
            snapshots,
            vec!["--overlay", "snapshot-controller"],
        ),
        (
            "faults",
            json!({"faults": true}),
            vec!["--component", "faults"],
        ),
        ("sharedKernels", shared, vec!["--overlay", "kind-shared"]),
        (
            "snapshotMetadata",
            json!({"snapshotMetadata": true}),
            vec!["--component", "snapshot-metadata"],
        ),
        (
            "kubeletDir",
            json!({"kubeletDir": kubelet}),
            vec!["--kubelet-dir", kubelet],
        ),
        (
            "the values of the overlay k0s",
            k0s,
            vec!["--overlay", "k0s"],
        ),
        (
            "the values of the overlay kind",
            kind,
            vec!["--overlay", "kind"],
        ),
        ("a pool", inline, of_pool),
        (
            "controllers",
            json!({"controllers": controllers}),
            vec!["--controllers", controllers],
        ),
        ("an image of a registry", image, of_image),
        (
            "another driver name",
            json!({"driverName": "d.example.com", "snapshotController": true}),
            vec![
                "--overlay",
                "snapshot-controller",
                "--driver-name",
                "d.example.com",
            ],
        ),
        (
            "a default class",
            class,
            vec!["--component", "default-class"],
        ),
        (
            "monitoring",
            monitoring,
            vec!["--component", "pod-monitor", "--component", "alerts"],
        ),
    ]
}

/// Older API servers do not know all objects, and refuse a field that they do not know.
#[test]
fn the_chart_fits_older_servers() {
    let older = of_kustomize(&["--component", "kubernetes-1.30"]);
    let render = |version| {
        let rendered = helm(&json!({}), &["--no-hooks", "--kube-version", version]);
        read(&rendered.unwrap_or_else(|why| panic!("{why}")))
    };
    for version in ["1.30.0", "1.33.9-rc.1"] {
        let objects = render(version);
        assert_eq!(
            objects.keys().collect::<Vec<_>>(),
            older.keys().collect::<Vec<_>>()
        );
        let driver = "CSIDriver /hostloop.csi.dev";
        assert_eq!(objects[driver]["spec"], older[driver]["spec"]);
    }
    assert_eq!(render("1.34.0").len(), older.len() + 3);
    let error = helm(&json!({}), &["--kube-version", "1.29.9"]).expect_err("it is too old");
    assert!(error.contains("1.29.9"), "{error}");
}

#[test]
fn the_chart_renders_what_kustomize_renders() {
    let (mut compared, cases) = (0, cases());
    for (what, values, args) in &cases {
        let (mut ours, theirs) = (of_helm(values), of_kustomize(args));
        // The chart's own objects have these labels; those of a kustomize component have none.
        for (key, object) in &mut ours {
            let Some(other) = theirs.get(key) else {
                panic!("{what}: only Helm renders {key}")
            };
            for label in ["app.kubernetes.io/part-of", "app.kubernetes.io/version"] {
                let labels = object["metadata"]["labels"]
                    .as_object_mut()
                    .expect("it has labels");
                if other["metadata"]["labels"].get(label).is_none() {
                    labels.remove(label);
                }
            }
            assert!(
                object == other,
                "{what}: {key} differs:\n{}",
                difference(object, other)
            );
            compared += 1;
        }
        for key in theirs.keys() {
            assert!(ours.contains_key(key), "{what}: Helm does not render {key}");
        }
    }
    println!("{compared} objects compared in {} renderings", cases.len());
}

/// The lines that only Helm's object has (+), and those that only kustomize's has (-).
fn difference(helm: &Value, kustomize: &Value) -> String {
    let lines = |object: &Value| serde_json::to_string_pretty(object).expect("it is JSON");
    let (helm, kustomize) = (lines(helm), lines(kustomize));
    let only = |mark: char, of: &str, than: &str| {
        let new = of
            .lines()
            .filter(|line| !than.lines().any(|other| other == *line));
        new.map(|line| format!("{mark} {}\n", line.trim()))
            .collect::<String>()
    };
    only('+', &helm, &kustomize) + &only('-', &kustomize, &helm)
}

/// The namespace is in rules, policies and bindings, too.
#[test]
fn another_namespace_is_everywhere() {
    let values = json!({"snapshotController": true, "podMonitor": {"enabled": true},
        "prometheusRule": {"enabled": true}, "dashboard": {"enabled": true}});
    let render = |namespace| helm(&values, &["--namespace", namespace]).expect("it renders");
    let (usual, other) = (render("hostloop"), render("elsewhere"));
    let places = |text: &str, namespace: &str| {
        let mark = [
            format!("namespace: {namespace}\n"),
            format!("system:serviceaccount:{namespace}:"),
            format!("- '{namespace}'\n"),
        ];
        mark.map(|mark| text.matches(&mark).count())
    };
    let expected = places(&usual, "hostloop");
    assert!(expected.iter().all(|n| *n > 0), "{expected:?}");
    assert_eq!(places(&other, "elsewhere"), expected);
    assert_eq!(places(&other, "hostloop"), [0; 3]);
}

/// The queries of alerts and dashboard name the driver and its lease.
#[test]
fn monitoring_follows_the_driver_name() {
    let values = json!({"driverName": "d.example.com", "prometheusRule": {"enabled": true},
        "dashboard": {"enabled": true}});
    let rendered = helm(&values, &["--no-hooks"]).expect("it renders");
    for usual in ["\"hostloop.csi.dev", "hostloop-hostloop-csi-dev"] {
        assert!(!rendered.contains(usual), "{usual}: {rendered}");
    }
    for ours in ["driver_name=\"d.example.com\"", "hostloop-d-example-com"] {
        assert!(rendered.contains(ours), "{ours}: {rendered}");
    }
}

/// Helm creates these before the other objects, and leaves them alone if they are there.
#[test]
fn the_snapshot_api_comes_with_the_snapshot_controller() {
    let definitions = |on: bool| {
        let values = json!({"snapshotController": on});
        let all = helm(&values, &["--include-crds"]).expect("it renders");
        let mut all = read(&all);
        all.retain(|key, _| key.starts_with("CustomResourceDefinition "));
        all
    };
    assert!(definitions(false).is_empty());
    let files = hostloop_test::machine::root().join("deploy/crds");
    let mut shipped = String::new();
    for file in std::fs::read_dir(files)
        .expect("the folder is there")
        .flatten()
    {
        if file.file_name() != "kustomization.yaml" {
            let text = std::fs::read_to_string(file.path()).expect("it can be read");
            shipped.push_str(&format!("---\n{text}\n"));
        }
    }
    assert_eq!(definitions(true), read(&shipped));
}
