//! The Job of a person's file, which checks each cut.

use serde_json::{Map, Value, json};

use super::cut_objects::{ExplorationId, labels};

/// What stands in the file in place of the claim's name.
const CLAIM: &str = "$(CLAIM)";

/// The parts of the file that are maps, if they are there.
const MAPS: [&str; 6] = [
    "/metadata",
    "/metadata/labels",
    "/metadata/annotations",
    "/spec/template",
    "/spec/template/metadata",
    "/spec/template/metadata/labels",
];

/// A Job that checks one claim, of any name.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CheckTemplate(Value);

/// Why a file has no Job that can check a claim.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("it can't be read: {0}")]
    NotYaml(String),
    #[error("it has {0} objects; leave one, the Job that checks a claim")]
    Objects(usize),
    #[error("it has a {0}; the check is a Job of batch/v1")]
    Kind(String),
    #[error("{0} is not a map")]
    NotAMap(String),
    #[error("no volume of its pod has persistentVolumeClaim with claimName: $(CLAIM)")]
    NoClaim,
    #[error("leave out spec.selector: each Job gets its own")]
    Selector,
}

impl CheckTemplate {
    /// Reads a file.
    pub(super) fn parse(text: &str) -> Result<CheckTemplate, TemplateError> {
        let read = serde_saphyr::from_multiple::<Value>(text);
        let mut objects = read.map_err(|error| TemplateError::NotYaml(error.to_string()))?;
        objects.retain(|object| !object.is_null());
        let [job] = &objects[..] else {
            return Err(TemplateError::Objects(objects.len()));
        };
        if job["kind"] != "Job" || job["apiVersion"] != "batch/v1" {
            let words = [&job["kind"], &job["apiVersion"]].map(|word| word.as_str().unwrap_or("?"));
            return Err(TemplateError::Kind(words.join(" of ")));
        }
        for path in MAPS {
            let part = job.pointer(path).unwrap_or(&Value::Null);
            if !part.is_null() && !part.is_object() {
                let name = path[1..].replace('/', ".");
                return Err(TemplateError::NotAMap(name));
            }
        }
        if !job["spec"]["selector"].is_null() {
            return Err(TemplateError::Selector);
        }
        let volumes = job["spec"]["template"]["spec"]["volumes"].as_array();
        let mut claims = volumes.into_iter().flatten().map(claim_name);
        if !claims.any(|claim| claim == Some(CLAIM)) {
            return Err(TemplateError::NoClaim);
        }
        Ok(CheckTemplate(job.clone()))
    }

    /// The Job that checks the claim of a cut. Job and claim have this name.
    pub(super) fn job(
        &self,
        name: &str,
        namespace: &str,
        exploration: &ExplorationId,
        number: u32,
    ) -> Value {
        let mut job = self.0.clone();
        let labels = labels(exploration);
        let mut metadata = json!({
            "name": name,
            "namespace": namespace,
            "annotations": job["metadata"]["annotations"],
        });
        metadata["labels"] = merged(&job["metadata"]["labels"], &labels);
        job["metadata"] = metadata;
        let spec = &mut job["spec"];
        // A second look at a claim that the first one has changed may find nothing.
        default(spec, "backoffLimit", json!(0));
        if let Some(spec) = spec.as_object_mut() {
            // It would end before its verdict is read.
            spec.remove("ttlSecondsAfterFinished");
        }
        let template = &mut spec["template"];
        let own = template["metadata"]["labels"].clone();
        template["metadata"]["labels"] = merged(&own, &labels);
        let pod = &mut template["spec"];
        default(pod, "restartPolicy", json!("Never"));
        for volume in array(pod, "volumes") {
            if claim_name(volume) == Some(CLAIM) {
                volume["persistentVolumeClaim"]["claimName"] = json!(name);
            }
        }
        for containers in ["initContainers", "containers"] {
            for container in array(pod, containers) {
                set_environment(container, name, number);
            }
        }
        job
    }
}

/// The name of the claim of a pod's volume.
fn claim_name(volume: &Value) -> Option<&str> {
    volume["persistentVolumeClaim"]["claimName"].as_str()
}

/// The objects of a list; none if it is none.
fn array<'v>(value: &'v mut Value, field: &str) -> impl Iterator<Item = &'v mut Value> {
    let list = value.get_mut(field).and_then(Value::as_array_mut);
    list.into_iter().flatten().filter(|one| one.is_object())
}

fn default(object: &mut Value, field: &str, value: Value) {
    if object[field].is_null() {
        object[field] = value;
    }
}

/// The labels of the file, and those of the exploration.
fn merged(own: &Value, labels: &Value) -> Value {
    let mut all: Map<String, Value> = own.as_object().cloned().unwrap_or_default();
    all.extend(labels.as_object().cloned().unwrap_or_default());
    Value::Object(all)
}

/// Sets CLAIM and CUT. They come first, so that other variables and arguments may have `$(CUT)`.
fn set_environment(container: &mut Value, claim: &str, number: u32) {
    let mut variables = vec![
        json!({"name": "CLAIM", "value": claim}),
        json!({"name": "CUT", "value": number.to_string()}),
    ];
    let own = container["env"].as_array().into_iter().flatten();
    let others = own.filter(|variable| {
        !["CLAIM", "CUT"]
            .map(Value::from)
            .contains(&variable["name"])
    });
    variables.extend(others.cloned());
    container["env"] = Value::Array(variables);
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::batch::v1::Job;
    use rstest::rstest;

    use super::*;
    use crate::explore::testing::{TEMPLATE, exploration};
    use crate::test_objects::read;

    #[rstest]
    #[case::no_yaml("a: [", "it can't be read: ")]
    #[case::empty("# nothing\n", "it has 0 objects")]
    #[case::several("kind: Job\n---\nkind: Pod\n", "it has 2 objects")]
    #[case::a_pod(
        "{apiVersion: v1, kind: Pod}",
        "it has a Pod of v1; the check is a Job"
    )]
    #[case::a_list("[]", "it has a ? of ?")]
    #[case::labels(
        "{apiVersion: batch/v1, kind: Job, metadata: {labels: a}}",
        "metadata.labels is not a map"
    )]
    #[case::selector(
        "{apiVersion: batch/v1, kind: Job, spec: {selector: {}}}",
        "leave out spec.selector"
    )]
    #[case::no_claim(
        "{apiVersion: batch/v1, kind: Job, spec: {template: {spec: {volumes: \
         [{name: a, persistentVolumeClaim: {claimName: data}}]}}}}",
        "no volume of its pod has persistentVolumeClaim with claimName: $(CLAIM)"
    )]
    #[case::no_volumes(
        "{apiVersion: batch/v1, kind: Job, spec: {template: {spec: {volumes: a}}}}",
        "no volume of its pod"
    )]
    fn refused_files(#[case] text: &str, #[case] expected: &str) {
        let error = CheckTemplate::parse(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }

    #[rstest]
    #[case::shell(include_str!("../../../deploy/examples/explore/check.yaml"))]
    #[case::sqlite(include_str!("../../../deploy/examples/explore/sqlite-check.yaml"))]
    #[case::postgresql(include_str!("../../../deploy/examples/explore/postgresql-check.yaml"))]
    fn examples(#[case] text: &str) {
        let template = CheckTemplate::parse(text).unwrap();
        let job: Job = read(template.job("name", "demo", &exploration(), 7));
        let pod = job.spec.unwrap().template.spec.unwrap();
        let claim = pod.volumes.unwrap()[0].persistent_volume_claim.clone();
        assert_eq!(claim.unwrap().claim_name, "name");
    }

    #[test]
    fn a_job_for_a_cut() {
        let template = CheckTemplate::parse(TEMPLATE).unwrap();
        let value = template.job("explore-data-01234567-0007", "demo", &exploration(), 7);
        let job: Job = read(value.clone());
        assert_eq!(
            job.metadata.name.as_deref(),
            Some("explore-data-01234567-0007")
        );
        assert_eq!(job.metadata.namespace.as_deref(), Some("demo"));
        assert_eq!(job.metadata.generate_name, None);
        let labels = job.metadata.labels.unwrap();
        assert_eq!(labels["team"], "storage");
        assert_eq!(
            labels["hostloop.csi.dev/exploration"],
            exploration().as_str()
        );
        let spec = job.spec.unwrap();
        assert_eq!(spec.backoff_limit, Some(0));
        assert_eq!(spec.ttl_seconds_after_finished, None);
        let labels = spec.template.metadata.unwrap().labels.unwrap();
        assert!(labels.contains_key("hostloop.csi.dev/exploration"));
        let pod = spec.template.spec.unwrap();
        assert_eq!(pod.restart_policy.as_deref(), Some("Never"));
        let claims: Vec<String> = pod
            .volumes
            .unwrap()
            .into_iter()
            .filter_map(|volume| Some(volume.persistent_volume_claim?.claim_name))
            .collect();
        assert_eq!(claims, ["explore-data-01234567-0007", "other"]);
        let variables: Vec<String> = pod.containers[0]
            .env
            .iter()
            .flatten()
            .map(|one| format!("{}={}", one.name, one.value.as_deref().unwrap_or_default()))
            .collect();
        assert_eq!(
            variables,
            ["CLAIM=explore-data-01234567-0007", "CUT=7", "MODE=strict"]
        );
        // What the client does not know stays.
        assert_eq!(value["spec"]["newField"], true);
    }
}
