use clap::Parser;
use hostloop_fake_api::{FakeApi, Fault};
use hostloop_report::flags::DRIVER_NAME;
use serde_json::{Value, json};

use super::*;
use crate::test_objects::{cluster_of, has, pod, writes};
use crate::{Cli, Command};

/// The arguments of `install` with these flags.
fn args(flags: &str) -> Args {
    parse(flags).unwrap()
}

fn parse(flags: &str) -> Result<Args, String> {
    let line = format!("kubectl-hostloop install {flags}");
    match Cli::try_parse_from(line.split_whitespace())
        .map_err(|error| error.to_string())?
        .command
    {
        Command::Install(args) => Ok(args),
        other => panic!("{other:?}"),
    }
}

fn node(provider: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
        "spec": {"providerID": provider}})
}

async fn survey(server: &FakeApi) -> Result<Survey, Error> {
    let cluster = cluster_of(server);
    Survey::take(&cluster, &mut Objects::new(cluster.client.clone())).await
}

/// Installs as `run` does, but does not wait for pods, which this server has none of.
async fn install(server: &FakeApi, flags: &str) -> Result<apply::Counts, Error> {
    install_as(DRIVER_NAME, server, flags).await
}

/// [`install`] under another driver name.
async fn install_as(driver: &str, server: &FakeApi, flags: &str) -> Result<apply::Counts, Error> {
    let cluster = Cluster {
        driver_name: driver.to_owned(),
        ..cluster_of(server)
    };
    let mut objects = Objects::new(cluster.client.clone());
    let survey = Survey::take(&cluster, &mut objects).await?;
    let plan = InstallPlan::decide(&args(flags), driver, Some(&survey))?;
    refuse_in_use(&plan, &survey, &cluster, &mut objects).await?;
    let fitted = apply::fit(&plan, &survey, &mut objects).await?;
    let counts = apply::apply(&plan, fitted.objects, &mut objects).await?;
    unrequested::remove(&plan, &survey, &cluster, &mut objects).await?;
    Ok(counts)
}

#[test]
fn flags_with_and_without_values() {
    let parsed = args("--default-class --dry-run");
    assert_eq!(
        (parsed.default_class, parsed.dry_run.how),
        (Some(Class::Ext4), DryRun::Server)
    );
    let parsed = args("--default-class=xfs --dry-run=client --kubelet-dir /k/ --timeout 0s");
    assert_eq!(
        (parsed.default_class, parsed.dry_run.how),
        (Some(Class::Xfs), DryRun::Client)
    );
    assert_eq!(parsed.kubelet_dir.as_deref(), Some("/k"));
    assert!(parsed.timeout.is_zero());
    for (flags, how) in [
        ("", DryRun::None),
        ("--dry-run=none", DryRun::None),
        ("--dry-run=server", DryRun::Server),
        ("--dry-run=cluster", DryRun::Server),
    ] {
        assert_eq!(args(flags).dry_run.how, how, "{flags:?}");
    }
    for wrong in [
        "--dry-run=all",
        "--kubelet-dir k",
        "--kubelet-dir /a/../b",
        "--pool /srv",
        "--default-class=zfs",
    ] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn an_unknown_cluster_gets_the_base() {
    let plan = InstallPlan::decide(&args(""), DRIVER_NAME, None).unwrap();
    assert_eq!(plan.settings, manifests::Settings::default());
    assert!(plan.crds.apply.is_empty());
}

#[tokio::test]
async fn an_empty_cluster_gets_everything_once() {
    let server = FakeApi::default();
    server.put(node("kind://docker/kind/n1"));
    let counts = install(&server, "--default-class=xfs").await.unwrap();
    let all = counts.created;
    assert!(
        all > 50 && counts.changed + counts.unchanged == 0,
        "{counts:?}"
    );
    let writes = writes(&server);
    assert!(
        writes[..6]
            .iter()
            .all(|write| write.contains("customresourcedefinitions"))
    );
    assert!(writes.last().unwrap().contains("daemonsets"), "{writes:?}");
    let classes = server.all("storageclasses");
    let defaults = classes
        .iter()
        .filter(|class| !class["metadata"]["annotations"].is_null());
    assert_eq!(
        defaults
            .map(|class| &class["metadata"]["name"])
            .collect::<Vec<_>>(),
        ["hostloop-xfs"]
    );

    // Again, without the flags: nothing changes.
    let counts = install(&server, "").await.unwrap();
    assert_eq!(
        (counts.created, counts.changed, counts.unchanged),
        (0, 0, all)
    );

    let counts = install(&server, "--pool default=/srv/a").await.unwrap();
    assert_eq!((counts.created, counts.changed), (0, 1));
    // The pool stays, because volumes may be in it.
    let survey = survey(&server).await.unwrap();
    let plan = InstallPlan::decide(&args(""), DRIVER_NAME, Some(&survey)).unwrap();
    assert_eq!(plan.settings.pools[0].path, "/srv/a");
}

#[tokio::test]
async fn distributions_have_the_pools_of_their_overlays() {
    let labelled = json!({"minikube.k8s.io/name": "minikube"});
    for (provider, labels, flags, pool) in [
        (
            "kind://docker/kind/n1",
            json!({}),
            "",
            "default=/var/lib/hostloop,image=20Gi",
        ),
        (
            "",
            labelled.clone(),
            "",
            "default=/data/hostloop,image=20Gi",
        ),
        ("", labelled, "--pool a=/srv", "a=/srv"),
        ("", json!({}), "", "default=/var/lib/hostloop"),
    ] {
        let server = FakeApi::default();
        let mut one = node(provider);
        one["metadata"]["labels"] = labels;
        server.put(one);
        install(&server, flags).await.unwrap();
        let installed = manifests::Installed::of(&server.all("daemonsets").remove(0), None);
        assert_eq!(installed.pools.len(), 1);
        assert_eq!(installed.pools[0].to_string(), pool);
    }
}

/// A changed order of the DaemonSet's environment would restart its pods.
#[tokio::test]
async fn a_second_installation_changes_nothing() {
    for flags in [
        "--attach",
        "--faults",
        "--pool a=/srv/a,inline --pool b=/dev/sdb",
        "--kubelet-dir /k",
    ] {
        let server = FakeApi::default();
        server.put(node(""));
        install(&server, flags).await.unwrap();
        let is_kept = !["--attach", "--faults"].contains(&flags);
        let again = if is_kept { "" } else { flags };
        let counts = install(&server, again).await.unwrap();
        assert_eq!((counts.created, counts.changed), (0, 0), "{flags}");
    }
}

/// A node that is stopped has no Node object for a time, and keeps its place.
#[tokio::test]
async fn the_nodes_of_kind_share_a_kernel() {
    let server = FakeApi::default();
    server.put(node("kind://docker/kind/n1"));
    let names = || {
        let maps = server.all("configmaps");
        let found = maps
            .iter()
            .find(|map| map["metadata"]["name"] == "hostloop-kernels");
        found.map(|map| map["data"].clone())
    };
    install(&server, "--shared").await.unwrap();
    assert_eq!(names(), Some(json!({"kernel": "n1"})));
    install(&server, "--shared=n2").await.unwrap();
    assert_eq!(names(), Some(json!({"kernel": "n1 n2"})));
    let counts = install(&server, "--shared").await.unwrap();
    assert_eq!((counts.created, counts.changed), (0, 0));
    assert_eq!(names(), Some(json!({"kernel": "n1 n2"})));
    let drivers = server.all("csidrivers");
    assert_eq!(drivers[0]["spec"]["attachRequired"], true);

    let error = install(&server, "").await.unwrap_err().to_string();
    has(&error, &["To keep it, add --shared."]);
    server.put(json!({"apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": "hostloop-1"}, "spec": {"csi": {"driver": DRIVER_NAME,
            "volumeHandle": "v", "volumeAttributes": {"reach": "kernel"}}}}));
    let error = install(&server, "--attach").await.unwrap_err().to_string();
    has(&error, &["\n  hostloop-1\n", "or add --shared"]);
    assert_eq!(names(), Some(json!({"kernel": "n1 n2"})));

    server.take("/persistentvolumes/hostloop-1");
    install(&server, "--attach").await.unwrap();
    assert_eq!(names(), None);
    let classes = server.all("storageclasses");
    assert_eq!(classes.len(), 4);
}

/// What the controller keeps stays, so that backup tools can go on once it is asked for again.
#[tokio::test]
async fn components_that_are_not_asked_for_go() {
    let server = FakeApi::default();
    server.put(node(""));
    let has_one = |plural: &str, name: &str| {
        let objects = server.all(plural);
        objects.iter().any(|one| one["metadata"]["name"] == name)
    };
    for (flags, faults, metadata) in [
        ("--faults --snapshot-metadata", true, true),
        ("--snapshot-metadata", false, true),
        ("--faults", true, false),
        ("", false, false),
    ] {
        install(&server, flags).await.unwrap();
        let found = has_one("daemonsets", "hostloop-fault-disks");
        assert_eq!(found, faults, "{flags}");
        for (plural, name) in [
            ("clusterroles", "hostloop-snapshot-metadata"),
            ("rolebindings", "hostloop-snapshot-metadata-nodes"),
            ("networkpolicies", "hostloop-snapshot-metadata"),
        ] {
            assert_eq!(has_one(plural, name), metadata, "{flags} {name}");
        }
        assert!(has_one("configmaps", "hostloop-snapshot-bases"), "{flags}");
        assert!(has_one("daemonsets", "hostloop"), "{flags}");
    }
}

#[tokio::test]
async fn the_rights_of_a_snapshot_controller_go_with_it() {
    let server = FakeApi::default();
    server.put(node(""));
    for (flags, expected) in [
        ("", 1),
        ("--snapshot-controller no", 0),
        ("--snapshot-controller yes", 1),
    ] {
        install(&server, flags).await.unwrap();
        let mut roles = server.all("clusterroles");
        roles.retain(|role| role["metadata"]["name"] == "hostloop-snapshot-controller");
        assert_eq!(roles.len(), expected, "{flags}");
    }
}

/// The end of their server would be a power cut.
#[tokio::test]
async fn fault_disks_that_may_be_in_use_stay() {
    let server = FakeApi::default();
    server.put(node(""));
    install(&server, "--faults").await.unwrap();
    let mut served = pod("hostloop-fault-disks", "a", "n1");
    served["apiVersion"] = json!("v1");
    served["kind"] = json!("Pod");
    served["metadata"]["namespace"] = json!("hostloop");
    server.put(served);
    writes(&server);
    let error = install(&server, "").await.unwrap_err().to_string();
    has(
        &error,
        &[
            "volumes on n1, if there are any: DaemonSet hostloop has no pod there",
            "add --faults",
        ],
    );
    assert_eq!(writes(&server), Vec::<String>::new());
    install(&server, "--faults").await.unwrap();
}

/// Volumes belong to the name that they were made under.
#[tokio::test]
async fn another_driver_name_stays() {
    let server = FakeApi::default();
    server.put(node(""));
    let name = "d.example.com";
    install_as(name, &server, "").await.unwrap();
    let drivers = server.all("csidrivers");
    assert_eq!(drivers.len(), 1);
    assert_eq!(drivers[0]["metadata"]["name"], name);
    let classes = server.all("storageclasses");
    assert!(classes.iter().all(|class| class["provisioner"] == name));
    let installed = manifests::Installed::of(&server.all("daemonsets").remove(0), None);
    assert_eq!(installed.driver_name.as_deref(), Some(name));

    let counts = install_as(name, &server, "").await.unwrap();
    assert_eq!((counts.created, counts.changed), (0, 0));
    let error = install(&server, "").await.unwrap_err().to_string();
    has(
        &error,
        &[
            "hostloop is installed as driver d.example.com",
            "uninstall --driver-name d.example.com",
        ],
    );
}

#[tokio::test]
async fn what_cannot_be_installed_says_why() {
    let driver = |required: bool| {
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
            "metadata": {"name": "hostloop.csi.dev", "labels": {"app.kubernetes.io/name": "hostloop"}},
            "spec": {"attachRequired": required}})
    };
    let helm = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "hostloop",
        "namespace": "hostloop", "annotations": {"meta.helm.sh/release-name": "store"}}});
    let foreign = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": "hostloop-ext4"}, "provisioner": "other"});
    for (minor, object, flags, contains) in [
        (
            29,
            node(""),
            "",
            "the server is Kubernetes v1.29.0, and hostloop needs 1.30 or newer",
        ),
        (36, driver(true), "", "To keep it, add --attach."),
        (
            36,
            driver(false),
            "--attach",
            "To keep it, leave --attach and --shared out.",
        ),
        (
            36,
            driver(false),
            "--shared=n1",
            "To keep it, leave --attach and --shared out.",
        ),
        (
            36,
            node(""),
            "--shared",
            "an unknown distribution does not say which nodes are containers",
        ),
        (36, helm, "", "helm upgrade store"),
        (
            36,
            foreign,
            "",
            "hostloop-ext4 exists and is not hostloop's: Apply failed with 1 conflict",
        ),
    ] {
        let server = FakeApi::default();
        server.minor(minor);
        server.put(object);
        let error = install(&server, flags).await.unwrap_err().to_string();
        assert!(error.contains(contains), "{error}");
    }
}

/// Such a server may lack anything.
#[tokio::test]
async fn a_server_whose_version_has_no_numbers_is_refused() {
    for (major, minor) in [("", ""), ("1", "x"), ("x", "36")] {
        let server = FakeApi::default();
        let info = json!({"major": major, "minor": minor, "gitVersion": "v1.next-custom",
            "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "",
            "platform": ""});
        server.answer("/version", 200, info);
        let error = survey(&server).await.unwrap_err().to_string();
        has(
            &error,
            &["the server is Kubernetes v1.next-custom, and hostloop needs 1.30 or newer"],
        );
    }
}

/// The pools of a DaemonSet stay in whatever form it has them. Those that can't be read are asked
/// for: volumes may be in them.
#[tokio::test]
async fn pools_of_an_earlier_manifest_stay_or_are_asked_for() {
    let (none, program) = (json!([]), "/usr/bin/hostloop");
    let (program_alone, all) = (json!([program]), json!([program, "run", "--pool", "a=/p"]));
    for (command, arguments, flags, expected) in [
        (&none, json!(["run", "--pool=a=/p"]), "", Ok("a=/p")),
        (
            &none,
            json!(["run", "--pool", "a=/p", "--pool", "b=/q"]),
            "",
            Ok("a=/p b=/q"),
        ),
        (
            &program_alone,
            json!(["run", "--pool", "a=/p"]),
            "",
            Ok("a=/p"),
        ),
        (
            &all,
            json!([]),
            "--pool a=/p",
            Err("move all but the program to args"),
        ),
        (
            &none,
            json!(["run", "--pool"]),
            "",
            Err("shows the pool \"true\", which can't be read"),
        ),
        (
            &none,
            json!(["run", "--pool=a=/p", "--pool=b"]),
            "",
            Err("shows the pool \"b\""),
        ),
        (
            &none,
            json!(["run"]),
            "",
            Err("shows no pool, and volumes may be"),
        ),
        (&none, json!(["run", "--pool"]), "--pool a=/p", Ok("a=/p")),
    ] {
        let server = FakeApi::default();
        server.put(node(""));
        let container = json!({"name": "hostloop", "command": command, "args": arguments});
        server.put(json!({
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "hostloop", "namespace": "hostloop"},
            "spec": {"template": {"spec": {"containers": [container]}}},
        }));
        let survey = survey(&server).await.unwrap();
        let plan = InstallPlan::decide(&args(flags), DRIVER_NAME, Some(&survey));
        let pools = plan.map(|plan| {
            let pools = plan.settings.pools.iter().map(ToString::to_string);
            pools.collect::<Vec<_>>().join(" ")
        });
        match (pools, expected) {
            (Ok(pools), Ok(expected)) => assert_eq!(pools, expected),
            (Err(error), Err(words)) => has(&error.to_string(), &[words]),
            (pools, expected) => panic!("{arguments}: {pools:?} is not {expected:?}"),
        }
    }
}

#[tokio::test]
async fn a_missing_right_is_named() {
    for (method, plural, contains) in [
        (
            &["GET"],
            "nodes",
            "you may not list nodes in the whole cluster; ask for this right",
        ),
        (
            &["PATCH"],
            "clusterroles",
            "you may not patch clusterroles.rbac.authorization.k8s.io in the whole cluster",
        ),
    ] {
        let server = FakeApi::default();
        server.fault(method, plural, None, Fault::Refuse(403));
        let error = install(&server, "").await.unwrap_err().to_string();
        assert!(error.contains(contains), "{error}");
    }
}

#[tokio::test]
async fn the_report_says_what_was_found() {
    let server = FakeApi::default();
    server.put(node("kind://docker/kind/n1"));
    server.put(
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": "standard",
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}),
    );
    let survey = survey(&server).await.unwrap();
    let plan = InstallPlan::decide(&args("--default-class"), DRIVER_NAME, Some(&survey)).unwrap();
    let lines = report::lines(&plan, &survey).join("\n");
    has(
        &lines,
        &[
            "test: Kubernetes v1.36.0, kind, 1 node",
            "/var/lib/kubelet (the default)",
            "default=/var/lib/hostloop,image=20Gi",
            "hostloop is the cluster's snapshot controller",
            "StorageClass hostloop-ext4",
            "kubectl annotate storageclass standard storageclass.kubernetes.io/is-default-class-",
            "6 CustomResourceDefinition",
            "4 StorageClass",
        ],
    );
}

#[test]
fn names_of_other_installations_are_refused() {
    for (flags, refused) in [
        ("--system-namespace=hostloop", None),
        ("--driver-name=d.example.com", None),
        (
            "--system-namespace=storage",
            Some("--system-namespace: the objects"),
        ),
        ("--driver-name=D", Some("--driver-name: \"D\" contains 'D'")),
        (
            "--driver-name=a..b",
            Some("--driver-name: \"a..b\" has a part"),
        ),
    ] {
        let cli = Cli::try_parse_from(["kubectl-hostloop", flags, "install"]).unwrap();
        let error = check_names(&cli.cluster).err().map(|e| e.to_string());
        assert_eq!(error.is_some(), refused.is_some(), "{flags}: {error:?}");
        let error = error.unwrap_or_default();
        assert!(error.starts_with(refused.unwrap_or_default()), "{error}");
    }
    assert!(parse("--driver-name _x").is_err());
}
