use super::*;
use crate::manifests::ObjectKey;
use crate::test_objects::has;

fn pools(words: &[&str]) -> Vec<Pool> {
    words.iter().map(|word| word.parse().unwrap()).collect()
}

/// The changed fields: the path of each, and its value.
fn changes(settings: &Settings) -> Vec<String> {
    let before = base();
    let mut changes = Vec::new();
    for object in settings.objects() {
        let key = ObjectKey::of(&object);
        match before.iter().find(|one| ObjectKey::of(one) == key) {
            None => changes.push(format!("+ {key}")),
            Some(old) => compare(&key.to_string(), old, &object, &mut changes),
        }
    }
    changes
}

fn compare(path: &str, old: &Value, new: &Value, changes: &mut Vec<String>) {
    match (old, new) {
        (Value::Object(a), Value::Object(b)) => {
            for (key, value) in b {
                let old = a.get(key).unwrap_or(&Value::Null);
                compare(&format!("{path} {key}"), old, value, changes);
            }
            let gone = a.keys().filter(|key| !b.contains_key(*key));
            changes.extend(gone.map(|key| format!("{path} {key}: gone")));
        }
        // A changed item of a list is a new one.
        (Value::Array(a), Value::Array(b)) => {
            let new = b.iter().filter(|item| !a.contains(item));
            changes.extend(new.map(|item| format!("{path}: + {item}")));
            let gone = a.iter().filter(|item| !b.contains(item));
            changes.extend(gone.map(|item| format!("{path}: - {item}")));
        }
        (a, b) if a != b => changes.push(format!("{path}: {b}")),
        _ => {}
    }
}

/// The lines of `changes` that contain each of these words, in order; and no others.
#[track_caller]
fn assert_changes(settings: Settings, expected: &[&[&str]]) {
    let changes = changes(&settings);
    let all = changes.join("\n");
    assert_eq!(changes.len(), expected.len(), "{all}");
    for (line, words) in changes.iter().zip(expected) {
        for word in *words {
            assert!(line.contains(word), "{word:?} is not in {line:?} of\n{all}");
        }
    }
}

#[test]
fn no_choice_is_the_base() {
    assert_changes(Settings::default(), &[]);
}

#[test]
fn a_default_class_has_the_annotation() {
    for class in [Class::Ext4, Class::Xfs, Class::Btrfs, Class::Thick] {
        let settings = Settings {
            default_class: Some(class),
            ..Settings::default()
        };
        assert_changes(
            settings,
            &[&[class.name(), "annotations", "is-default-class\":\"true\""]],
        );
        assert_eq!(Class::named(class.name()), Some(class));
    }
    assert_eq!(Class::named("standard"), None);
}

#[test]
fn snapshots_add_their_objects() {
    let snapshots = Snapshots {
        class: true,
        group_class: false,
        controller: false,
    };
    assert_changes(
        Settings {
            snapshots,
            ..Settings::default()
        },
        &[&["+ VolumeSnapshotClass hostloop"]],
    );
    let snapshots = Snapshots {
        class: true,
        group_class: true,
        controller: true,
    };
    let settings = Settings {
        snapshots,
        ..Settings::default()
    };
    let changes = changes(&settings).join("\n");
    has(
        &changes,
        &[
            "Deployment hostloop/hostloop-controller",
            ",snapshot-controller",
            "+ VolumeSnapshotClass hostloop",
            "+ VolumeGroupSnapshotClass hostloop",
            "+ ClusterRole hostloop-snapshot-controller",
            "+ ClusterRoleBinding hostloop-snapshot-controller",
            "+ Role kube-system/hostloop-snapshot-controller",
            "+ RoleBinding kube-system/hostloop-snapshot-controller",
        ],
    );
}

/// The container of the DaemonSet with these settings.
fn container(settings: &Settings) -> Value {
    let mut objects = settings.objects();
    field(daemon_set(&mut objects), CONTAINER).cloned().unwrap()
}

fn volumes(settings: &Settings) -> Vec<(String, String)> {
    let mut objects = settings.objects();
    let volumes = list_mut(daemon_set(&mut objects), "spec.template.spec.volumes").clone();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    volumes
        .iter()
        .map(|v| (text(&v["name"]), text(&v["hostPath"]["path"])))
        .collect()
}

#[test]
fn kubelets_directory_is_a_variable_and_a_volume() {
    let settings = Settings {
        kubelet_dir: Some("/k".to_owned()),
        ..Settings::default()
    };
    let container = container(&settings);
    let variable = field(&container, "env.[name=KUBELET_DIR].value");
    assert_eq!(variable, Some(&json!("/k")));
    let mount = field(&container, "volumeMounts.[name=kubelet-dir].mountPath");
    assert_eq!(mount, Some(&json!("/k")));
    assert_eq!(
        volumes(&settings)[0],
        ("kubelet-dir".to_owned(), "/k".to_owned())
    );
}

#[test]
fn pools_by_what_they_are() {
    let base = "default=$(POOL_DIR)$(POOL_OPTIONS)";
    let (first, second) = (Some(("pool-dir", "/srv/a")), Some(("pool-dir-2", "/srv/a")));
    for (words, variable, options, path) in [
        (vec!["default=/srv/a"], base, None, first),
        (
            vec!["default=/srv/a,image=20Gi"],
            base,
            Some(",image=20Gi"),
            first,
        ),
        (
            vec!["fast=/srv/a"],
            "fast=$(POOL_DIR)$(POOL_OPTIONS)",
            None,
            first,
        ),
        (
            vec!["fast=/dev/nvme1n1", "slow=/srv/a,inline"],
            "fast=$(POOL_DIR)$(POOL_OPTIONS);slow=/srv/a,inline",
            None,
            second,
        ),
        (vec!["default=/dev/sdb"], base, None, None),
        (
            vec!["a=/dev/vdb,wipe", "c=/dev/vdc"],
            "a=$(POOL_DIR)$(POOL_OPTIONS);c=/dev/vdc",
            Some(",wipe"),
            None,
        ),
    ] {
        let settings = Settings {
            pools: pools(&words),
            ..Settings::default()
        };
        let container = container(&settings);
        let value = field(&container, "env.[name=HOSTLOOP_POOL].value");
        assert_eq!(value, Some(&json!(variable)), "{words:?}");
        let value = field(&container, "env.[name=POOL_DIR].value");
        assert_eq!(value, Some(&json!(settings.pools[0].path)), "{words:?}");
        let value = field(&container, "env.[name=POOL_OPTIONS].value").and_then(Value::as_str);
        assert_eq!(value, options, "{words:?}");
        let mut directories = volumes(&settings);
        directories.retain(|(name, _)| name.starts_with("pool"));
        let expected = path.map(|(name, path)| (name.to_owned(), path.to_owned()));
        assert_eq!(directories, Vec::from_iter(expected), "{words:?}");
        if let Some((name, path)) = path {
            let mount = field(&container, &format!("volumeMounts.[name={name}].mountPath"));
            assert_eq!(mount, Some(&json!(path)), "{words:?}");
        }
    }
}

/// Kubelet knows the variables before a value that names them, and no others.
#[test]
fn commands_in_the_container_need_no_flags() {
    let chosen = Settings {
        driver_name: Some("d.example.com".to_owned()),
        kubelet_dir: Some("/k".to_owned()),
        pools: pools(&["a=/srv/a,image=1Gi", "b=/srv/b"]),
        attach: true,
        ..Settings::default()
    };
    for settings in [Settings::default(), chosen] {
        let container = container(&settings);
        let mut known = Vec::new();
        for variable in container["env"].as_array().unwrap() {
            let value = variable["value"].as_str().unwrap_or_default();
            for rest in value.split("$(").skip(1) {
                let (named, _) = rest.split_once(')').unwrap();
                assert!(known.contains(&named), "{variable} comes after {known:?}");
            }
            known.push(variable["name"].as_str().unwrap());
        }
        for name in ["HOSTLOOP_POOL", "HOSTLOOP_STATEDIR", "HOSTLOOP_ENDPOINT"] {
            assert!(known.contains(&name), "{name}");
        }
    }
}

#[test]
fn changed_blocks_are_a_controller_of_both_workloads() {
    let settings = Settings {
        snapshot_metadata: true,
        ..Settings::default()
    };
    let changes = changes(&settings).join("\n");
    has(
        &changes,
        &[
            "Deployment hostloop/hostloop-controller",
            "DaemonSet hostloop/hostloop",
            ",snapshot-metadata",
            "+ Service hostloop/hostloop-snapshot-metadata",
            "+ Secret hostloop/hostloop-snapshot-metadata-ca",
            "+ ConfigMap hostloop/hostloop-snapshot-bases",
            "+ Role hostloop/hostloop-snapshot-metadata-nodes",
            "+ NetworkPolicy hostloop/hostloop-snapshot-metadata-nodes",
        ],
    );
}

#[test]
fn components_that_are_not_asked_for_are_known() {
    let keys = |settings: Settings| -> Vec<String> {
        let keys = settings.unrequested().into_iter();
        keys.map(|key| key.to_string()).collect()
    };
    let unrequested = keys(Settings::default());
    for object in [
        "DaemonSet hostloop/hostloop-fault-disks",
        "ClusterRole hostloop-snapshot-controller",
        "ClusterRole hostloop-snapshot-metadata",
        "Service hostloop/hostloop-snapshot-metadata",
        "ConfigMap hostloop/hostloop-kernels",
        "StorageClass hostloop-shared-xfs",
    ] {
        assert!(unrequested.iter().any(|key| key == object), "{object}");
    }
    for kept in [
        "Secret ",
        "ConfigMap hostloop/hostloop-snapshot",
        "VolumeSnapshotClass ",
        "Namespace ",
    ] {
        let found = unrequested.iter().find(|key| key.starts_with(kept));
        assert_eq!(found, None);
    }
    let all = Settings::default().with_all_components();
    assert_eq!(keys(all), [] as [String; 0]);
}

#[test]
fn the_pods_of_fault_disks_follow_the_drivers() {
    let settings = Settings {
        faults: true,
        driver_name: Some("d.example.com".to_owned()),
        kubelet_dir: Some("/k".to_owned()),
        ..Settings::default()
    };
    let objects = settings.objects();
    let found = objects
        .iter()
        .find(|object| object["metadata"]["name"] == "hostloop-fault-disks")
        .unwrap();
    for (path, expected) in [
        (
            "spec.template.spec.containers.[name=hostloop-fault-disks].image",
            base_image(),
        ),
        (
            "spec.template.spec.containers.[name=hostloop-fault-disks].env.[name=DRIVER_NAME].value",
            "d.example.com".to_owned(),
        ),
        (
            "spec.template.spec.volumes.[name=kubelet-dir].hostPath.path",
            "/k".to_owned(),
        ),
    ] {
        assert_eq!(field(found, path), Some(&json!(expected)), "{path}");
    }
}

#[test]
fn faults_are_a_variable() {
    for faults in [false, true] {
        let settings = Settings {
            faults,
            ..Settings::default()
        };
        let container = container(&settings);
        let variable = field(&container, "env.[name=HOSTLOOP_ENABLE_FAULTS].value");
        assert_eq!(variable, faults.then_some(&json!("true")));
    }
}

#[test]
fn nodes_that_share_a_kernel_are_an_object_in_the_drivers_pods() {
    let kernels = Kernels::from([("kernel".to_owned(), "a b".to_owned())]);
    let settings = Settings {
        attach: true,
        kernels: Some(kernels),
        ..Settings::default()
    };
    let container = container(&settings);
    for (path, value) in [
        ("env.[name=HOSTLOOP_KERNELS].value", "/etc/hostloop/kernels"),
        (
            "volumeMounts.[name=kernels].mountPath",
            "/etc/hostloop/kernels",
        ),
        ("env.[name=ATTACH].value", "true"),
    ] {
        assert_eq!(field(&container, path), Some(&json!(value)), "{path}");
    }
    let mut objects = settings.objects();
    let volume = "spec.template.spec.volumes.[name=kernels].configMap.name";
    let volume = field(daemon_set(&mut objects), volume).cloned();
    assert_eq!(volume, Some(json!(KERNELS)));
    let policies = objects
        .iter()
        .filter(|object| object["spec"]["paramRef"]["name"] == KERNELS);
    assert_eq!(policies.count(), 2);
    let object = objects
        .iter()
        .find(|object| object["kind"] == "ConfigMap" && object["metadata"]["name"] == KERNELS);
    assert_eq!(object.unwrap()["data"], json!({"kernel": "a b"}));
}

#[test]
fn attaching_is_a_variable_and_the_drivers_object() {
    let settings = Settings {
        attach: true,
        ..Settings::default()
    };
    let container = container(&settings);
    assert_eq!(
        field(&container, "env.[name=ATTACH].value"),
        Some(&json!("true"))
    );
    let objects = settings.objects();
    let driver = objects
        .iter()
        .find(|object| object["kind"] == "CSIDriver")
        .unwrap();
    assert_eq!(driver["spec"]["attachRequired"], true);
}

#[test]
fn images_and_who_pulls_them() {
    let tagged = format!("{}:other", repository(&base_image()));
    for (image, policy) in [
        (tagged.as_str(), "Never"),
        ("registry.example:5000/hostloop@sha256:0", "IfNotPresent"),
    ] {
        let settings = Settings {
            image: Some(image.to_owned()),
            ..Settings::default()
        };
        let mut containers = 0;
        for object in settings.objects() {
            let list = field(&object, "spec.template.spec.containers").and_then(Value::as_array);
            for container in list.into_iter().flatten() {
                assert_eq!(container["image"], image);
                assert_eq!(container["imagePullPolicy"], policy, "{image}");
                containers += 1;
            }
        }
        assert_eq!(containers, 2);
    }
}

#[test]
fn repositories() {
    for (image, name) in [
        ("hostloop", "hostloop"),
        ("hostloop:1", "hostloop"),
        ("host:5000/hostloop", "host:5000/hostloop"),
        ("host:5000/hostloop:1", "host:5000/hostloop"),
        ("host:5000/hostloop:1@sha256:ab", "host:5000/hostloop"),
        ("host/hostloop@sha256:ab", "host/hostloop"),
    ] {
        assert_eq!(repository(image), name);
    }
}

#[test]
fn pools_that_the_driver_would_reject_are_rejected() {
    for word in ["/srv", "a=srv", "a=/srv,imagine=1", "A B=/srv"] {
        assert!(word.parse::<Pool>().is_err(), "{word}");
    }
    for word in ["a=/srv", "a=/srv,image=1Gi,inline"] {
        assert_eq!(word.parse::<Pool>().unwrap().to_string(), word);
    }
}

/// What one installation chose, the next finds.
#[test]
fn an_installation_shows_its_settings() {
    for words in [
        vec![],
        vec!["default=/srv/a,image=20Gi"],
        vec!["a=/dev/sdb", "b=/srv/b,inline"],
    ] {
        for controller in [false, true] {
            let settings = Settings {
                driver_name: Some("d.example.com".to_owned()),
                kubelet_dir: Some("/k".to_owned()),
                pools: pools(&words),
                image: Some("r.example/h:1".to_owned()),
                attach: controller,
                snapshots: Snapshots {
                    controller,
                    ..Snapshots::default()
                },
                ..Settings::default()
            };
            let objects = settings.objects();
            let of = |kind: &str| {
                objects
                    .iter()
                    .find(|object| object["kind"] == kind)
                    .unwrap()
            };
            let installed = Installed::of(of("DaemonSet"), Some(of("Deployment")));
            let pools = if words.is_empty() {
                pools(&["default=/var/lib/hostloop"])
            } else {
                settings.pools
            };
            let Settings {
                driver_name,
                kubelet_dir,
                image,
                attach,
                ..
            } = settings;
            let snapshot_controller = controller;
            let expected = Installed {
                driver_name,
                kubelet_dir,
                pools,
                image,
                attach: Some(attach),
                snapshot_controller,
                ..Installed::default()
            };
            assert_eq!(installed, expected);
        }
    }
}

#[test]
fn an_earlier_version_has_its_pools_in_arguments() {
    let (first, second) = ("default=$(POOL_DIR)$(POOL_OPTIONS)", "b=/dev/sdb");
    let one_word = [first, second].map(|pool| format!("--pool={pool}"));
    let [first_word, second_word] = one_word.each_ref().map(String::as_str);
    let program = "/usr/bin/hostloop";
    for (command, args) in [
        (vec![], vec!["run", first_word, second_word]),
        (vec![], vec!["run", "--pool", first, "--pool", second]),
        (vec![program], vec!["run", "--pool", first, second_word]),
        (vec![program, "run", first_word, "--pool", second], vec![]),
        (vec![program, "run", first_word], vec![second_word]),
        (vec![program, "run", "--pool"], vec![first, second_word]),
    ] {
        let container = json!({
            "name": "hostloop",
            "command": command,
            "args": args,
            "env": [
                {"name": "POOL_DIR", "value": "/srv/a"},
                {"name": "POOL_OPTIONS", "value": ",image=1Gi"},
            ],
        });
        let daemon_set = json!({"spec": {"template": {"spec": {"containers": [container]}}}});
        let installed = Installed::of(&daemon_set, None);
        let expected = Installed {
            pools: pools(&["default=/srv/a,image=1Gi", "b=/dev/sdb"]),
            has_command_arguments: command.len() > 1,
            ..Installed::default()
        };
        assert_eq!(installed, expected, "{command:?} {args:?}");
    }
}
