//! Why a container of hostloop has ended.

use k8s_openapi::api::core::v1::ContainerStatus;

use crate::output::one_line;

/// The last line of the log of a container's last process that failed: its error. Kubelet copies the
/// end of the log into the status of such a pod (`terminationMessagePolicy: FallbackToLogsOnError`).
pub(crate) fn last_error(container: &ContainerStatus) -> Option<String> {
    let states = [&container.state, &container.last_state];
    let ended = states
        .into_iter()
        .flatten()
        .find_map(|state| state.terminated.as_ref())?;
    let mut lines = ended.message.as_deref()?.lines().map(one_line);
    lines.rfind(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::test_objects::read;

    #[test]
    fn the_last_line_is_the_error() {
        let ended = |message: &str| json!({"terminated": {"exitCode": 1, "message": message}});
        let log = "{\"level\":\"INFO\"}\nhostloop: run: pool default:\tno  disk\u{1b}\n\n";
        let waits = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        for (state, last_state, expected) in [
            (
                waits.clone(),
                ended(log),
                Some("hostloop: run: pool default: no disk\\u{1b}"),
            ),
            (ended("now"), ended("before"), Some("now")),
            (waits.clone(), ended(" \n"), None),
            (waits.clone(), json!({"terminated": {"exitCode": 1}}), None),
            (waits, Value::Null, None),
        ] {
            let container: ContainerStatus =
                read(json!({"name": "hostloop", "state": state, "lastState": last_state}));
            assert_eq!(last_error(&container).as_deref(), expected, "{state}");
        }
    }
}
