use clap::CommandFactory;

use super::*;

fn parse(line: &str) -> Result<Cli, String> {
    Cli::try_parse_from(line.split(' ')).map_err(|error| error.to_string())
}

fn serve(flags: &str) -> Result<ServeArgs, String> {
    let line = format!("hostloop serve --endpoint unix:///s --pool a=/p {flags}");
    match parse(line.trim_end())?.command {
        Command::Serve(args) => Ok(*args),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_command_line_is_sound_and_in_the_reference() {
    hostloop_document::flags::check(Cli::command(), "hostloop", "driver/src/cli.rs");
}

#[test]
fn every_flag_has_a_help_text_and_an_environment_variable() {
    for command in Cli::command().get_subcommands() {
        for arg in command.get_arguments() {
            assert!(arg.get_help().is_some(), "{command} {arg}");
            let Some(long) = arg.get_long() else {
                continue;
            };
            let env = arg.get_env().and_then(|env| env.to_str());
            let expected = match long {
                // These are subcommands or clap's own flags, so they have no variable.
                "help" | "version" | "cleanup" => None,
                "csi-endpoint" => Some("CSI_ENDPOINT".to_owned()),
                // Manifests set this variable.
                "node-name" => Some("NODE_NAME".to_owned()),
                "pod-ip" => Some("POD_IP".to_owned()),
                _ => Some(format!(
                    "HOSTLOOP_{}",
                    long.to_uppercase().replace('-', "_")
                )),
            };
            assert_eq!(env, expected.as_deref(), "--{long}");
        }
    }
}

#[test]
fn a_leader_needs_no_socket() {
    let controllers = |flags: &str| -> Result<ControllersArgs, String> {
        match parse(&format!("hostloop controllers {flags}"))?.command {
            Command::Controllers(args) => Ok(*args),
            other => panic!("{other:?}"),
        }
    };
    let args = controllers("--leader-tasks=only --drivername=d.example").unwrap();
    assert_eq!(args.driver_name.as_deref(), Some("d.example"));
    let both = controllers("--leader-tasks=only --drivername=d --csi-address=unix:///s");
    assert!(both.unwrap_err().contains("cannot be used with"));
    assert!(controllers("--leader-tasks=sometimes").is_err());
    let node = parse("hostloop run --endpoint unix:///s --pool a=/p --leader-tasks=elsewhere");
    assert!(node.is_ok());
}

#[test]
fn switches_take_a_value_or_none() {
    for (flag, value) in [
        ("--reject-multi-node", true),
        ("--reject-multi-node=true", true),
        ("--reject-multi-node=false", false),
        ("--reject-multi-node=1", true),
        ("--reject-multi-node=f", false),
    ] {
        let switches = serve(flag).unwrap().switches;
        assert_eq!(switches.reject_multi_node, value, "{flag}");
    }
    let off = serve("--enable-attach=false").unwrap();
    assert!(!off.switches.enable_attach);
    assert!(serve("--enable-attach=maybe").is_err());
    // The next word may be another flag, so it is not the value.
    assert!(serve("--enable-attach false").is_err());
    assert!(parse("hostloop controllers --extra-create-metadata false").is_err());
}

#[test]
fn kernels_are_in_a_directory() {
    let args = serve("--kernels /etc/hostloop/kernels").unwrap();
    let expected = PathBuf::from("/etc/hostloop/kernels");
    assert_eq!(args.volumes.kernels, Some(expected));
    assert_eq!(serve("").unwrap().volumes.kernels, None);
}

#[test]
fn pools_and_caps_come_together() {
    let args = serve("--pool b=/q,image=1Gi --capacity a=5Gi --capacity b=5e8").unwrap();
    let specs = args.pools.specs().unwrap();
    assert_eq!(specs.len(), 2);
    assert_eq!(specs[0].capacity_bytes, Some(5 << 30));
    assert_eq!(
        (specs[1].image_bytes, specs[1].capacity_bytes),
        (Some(1 << 30), Some(500_000_000))
    );
}

#[test]
fn pools_that_contradict_each_other_are_refused() {
    use PoolArgsError::*;
    for (flags, error) in [
        ("--pool a=/q", Twice("a".into())),
        ("--pool b=/p", SamePath("a".into(), "b".into())),
        ("--capacity c=1Gi", CapOfNone("c".into())),
        ("--capacity a=1Gi,a=2Gi", TwoCaps("a".into())),
        (
            "--pool b=/q,capacity=1Gi --capacity b=2Gi",
            TwoCaps("b".into()),
        ),
    ] {
        assert_eq!(serve(flags).unwrap().pools.specs(), Err(error), "{flags}");
    }
}

#[test]
fn invalid_values_are_refused_with_a_reason() {
    for (flags, reason) in [
        ("--drivername _x", "begin and end"),
        ("--capacity a", "NAME=SIZE"),
        ("--overcommit 0.5", "factor of 1 or more"),
        ("--overcommit NaN", "factor of 1 or more"),
        ("--reserve 100%", "percentage"),
        ("--max-volume-size 5Zi", "not a size"),
        ("--max-freeze 10", "is not a duration such as"),
        ("--topology-key a/b/c", "label key"),
        ("--default-fstype vfat", "none of ext4"),
        ("--http-endpoint 8080", "HOST:PORT"),
        (
            "--otlp-endpoint collector:4317",
            "'--otlp-endpoint <http://HOST:PORT>': has no scheme",
        ),
        ("--attach-limit -1", "unexpected argument"),
        ("--snapshot-metadata-block-type x", "FIXED_LENGTH"),
        ("--log-format xml", "json"),
    ] {
        let error = serve(flags).unwrap_err();
        assert!(error.contains(reason), "{flags}: {error}");
    }
    let none = parse("hostloop serve --endpoint unix:///s").unwrap_err();
    assert!(none.contains("--pool"), "{none}");
}

#[test]
fn other_commands_take_pools_too() {
    let Command::Status(status) = parse("hostloop status --pool a=/p --json").unwrap().command
    else {
        panic!();
    };
    assert!(status.json);
    let Command::Fsck(fsck) = parse("hostloop fsck --pool a=/p --repair").unwrap().command else {
        panic!();
    };
    assert!(fsck.repair && !fsck.json);
}

#[test]
fn flags_of_host_path_manifests_are_taken() {
    let flags = "--drivername=hostpath.csi.k8s.io --v=5 --nodeid=n --statedir=/data \
                 --maxvolumespernode=7 --attach-limit=3 --enable-attach \
                 --check-volume-lifecycle --max-volume-size=1Ti --max-volume-size-node=1Ti \
                 --enable-topology=false --enable-volume-expansion \
                 --disable-controller-expansion --disable-node-expansion \
                 --enable-controller-modify-volume --accepted-mutable-parameter-names=x,y \
                 --enable-snapshot-metadata --snapshot-metadata-block-type=VARIABLE_LENGTH";
    let flags: Vec<_> = flags.split_whitespace().collect();
    let args = serve(&flags.join(" ")).unwrap();
    assert_eq!(args.watch.log.verbosity, Some(5));
    assert_eq!(args.volumes.mutable_parameters, ["x", "y"]);
    assert_eq!(args.volumes.metadata_blocks, BlockType::Variable);
}

#[test]
fn label_keys_and_values() {
    for key in ["topology.hostloop.csi.dev/node", "node", "a/b_c.d"] {
        assert!(values::label_key(key).is_ok(), "{key}");
    }
    let long = &"x".repeat(64);
    for key in ["", "/node", "a/", "a/b/c", "a_b/c", "-a/b", "a..b/c", long] {
        assert!(values::label_key(key).is_err(), "{key}");
    }
    assert!(is_label_value("node-1.example.com"));
    for value in ["", "a b", "-a", long] {
        assert!(!is_label_value(value), "{value}");
    }
}

/// The page lists each upstream flag, and says whether `hostloop controllers` has it. It also takes
/// flags that it renames or ignores.
#[test]
fn the_page_of_upstream_flags_matches_the_command_line() {
    let mut all = Cli::command();
    all.build();
    let command = all.find_subcommand("controllers").unwrap();
    let has = |name: &str| command.get_arguments().any(|a| a.get_long() == Some(name));
    let page = include_str!("../../../docs/flags.md");
    let mut rows = 0;
    for row in page.lines().filter(|line| line.starts_with("| `--")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let name = cells[1].trim_matches('`').trim_start_matches("--");
        let expected = match cells[2] {
            "yes" => true,
            "no" | "ignored" | "renamed" => false,
            other => panic!("{name}: {other:?} says nothing of it"),
        };
        assert_eq!(has(name), expected, "--{name}");
        rows += 1;
    }
    assert!(rows > 60, "{rows} flags");
}
