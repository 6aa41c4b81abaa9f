use rstest::rstest;

use super::*;
use crate::cli::Args;
use crate::testing;

fn common(flags: &[&str], role: Role) -> Common {
    let args: Args = testing::parse(flags);
    args.common_of(role, &args.common("xfs"))
}

#[test]
fn a_value_is_for_one_controller() {
    let flags = [
        "--timeout=5s",
        "--per-controller=attacher-timeout=30s,provisioner-worker-threads=7",
        "--per-controller=provisioner-extra-create-metadata=true",
        "--per-controller=attacher-default-fstype=ext4",
        "--per-controller=resizer-resync-period=1m",
        "--per-controller=snapshotter-retry-interval-start=2s",
        "--per-controller=snapshotter-retry-interval-max=3s",
    ];
    let attacher = common(&flags, Role::Attacher);
    assert_eq!(attacher.timeout, Some(Duration::from_secs(30)));
    assert_eq!(attacher.worker_threads, None);
    assert_eq!(attacher.default_fstype, "ext4");
    assert!(!attacher.extra_create_metadata);
    for role in [Role::Provisioner, Role::Capacity] {
        let provisioner = common(&flags, role);
        assert_eq!(provisioner.timeout, Some(Duration::from_secs(5)), "{role}");
        assert_eq!(provisioner.worker_threads, Some(7), "{role}");
        assert_eq!(provisioner.default_fstype, "xfs", "{role}");
        assert!(provisioner.extra_create_metadata, "{role}");
    }
    let resizer = common(&flags, Role::Resizer);
    assert_eq!(resizer.resync_period, Some(Duration::from_secs(60)));
    let backoff = common(&flags, Role::Snapshotter).backoff();
    assert_eq!(backoff.start, Duration::from_secs(2));
    assert_eq!(backoff.max, Duration::from_secs(3));
}

#[rstest]
#[case::form("attacher-timeout", "is not NAME-FLAG=VALUE")]
#[case::controller("liveness-timeout=1s", "no controller has a value of its own")]
#[case::flag("health-resync-period=1s", "no controller has a value of its own")]
#[case::own_flag("attacher-resync=1s", "there are provisioner-timeout")]
#[case::duration("attacher-timeout=30", "attacher-timeout: \"30\" is not a duration")]
#[case::number("attacher-worker-threads=x", "is not a number")]
#[case::boolean("provisioner-extra-create-metadata=maybe", "is neither true nor false")]
fn others_are_refused(#[case] word: &str, #[case] reason: &str) {
    let error = word.parse::<PerController>().expect_err(word).to_string();
    assert!(error.contains(reason), "{error}");
}

/// Without its parser, the flag of a controller would count as unknown.
#[test]
fn each_flag_of_a_controller_is_shared() {
    for (role, flags) in FLAGS_OF {
        for flag in flags {
            let is_shared = SHARED_FLAGS.iter().any(|(shared, _)| shared == flag);
            assert!(is_shared, "{role}-{flag}");
        }
    }
}

/// The name of a controller may contain the hyphen that separates it from the flag.
#[test]
fn names_may_have_hyphens() {
    assert!(PerController::has("snapshot-controller-worker-threads"));
    assert!(!PerController::has("snapshot-controller-resync-period"));
    assert!(!PerController::has("health-port"));
}
