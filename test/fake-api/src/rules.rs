//! What the API server completes, writes in its own way, and refuses.

use serde_json::{Value, json};

use super::kinds::Kind;
use super::quantity;

const MODES: [&str; 4] = [
    "ReadWriteOnce",
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOncePod",
];

/// Fields that never change, by plural. A path ends at a field of objects, or at the whole of it.
const IMMUTABLE: [(&str, &[&str]); 8] = [
    (
        "storageclasses",
        &[
            "/parameters",
            "/provisioner",
            "/reclaimPolicy",
            "/volumeBindingMode",
        ],
    ),
    ("volumeattributesclasses", &["/driverName", "/parameters"]),
    (
        "csidrivers",
        &["/spec/attachRequired", "/spec/volumeLifecycleModes"],
    ),
    ("volumeattachments", &["/spec"]),
    (
        "csistoragecapacities",
        &["/nodeTopology", "/storageClassName"],
    ),
    (
        "persistentvolumes",
        &[
            "/spec/csi",
            "/spec/hostPath",
            "/spec/local",
            "/spec/volumeMode",
        ],
    ),
    ("volumesnapshots", &["/spec/source"]),
    ("volumesnapshotcontents", &["/spec/source"]),
];

/// Sets what a create leaves out. A claim without a class gets the default one.
pub(super) fn complete(kind: &Kind, object: &mut Value, default_class: Option<&str>) {
    match kind.kind.as_str() {
        "PersistentVolumeClaim" => {
            if object["spec"]["storageClassName"].is_null()
                && let Some(class) = default_class
            {
                object["spec"]["storageClassName"] = json!(class);
            }
            complete_claim(&mut object["spec"]);
            add_finalizer(object, "kubernetes.io/pvc-protection");
            object["status"] = json!({"phase": "Pending"});
        }
        "PersistentVolume" => {
            default(&mut object["spec"], "volumeMode", json!("Filesystem"));
            default(
                &mut object["spec"],
                "persistentVolumeReclaimPolicy",
                json!("Retain"),
            );
            add_finalizer(object, "kubernetes.io/pv-protection");
            object["status"] = json!({"phase": "Pending"});
        }
        "Namespace" => {
            let name = object["metadata"]["name"].clone();
            object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
            object["spec"]["finalizers"] = json!(["kubernetes"]);
            object["status"] = json!({"phase": "Active"});
        }
        "Pod" => complete_pod(object),
        "StorageClass" => {
            default(object, "reclaimPolicy", json!("Delete"));
            default(object, "volumeBindingMode", json!("Immediate"));
        }
        "CSIDriver" => {
            let spec = &mut object["spec"];
            default(spec, "attachRequired", json!(true));
            default(spec, "podInfoOnMount", json!(false));
            default(spec, "storageCapacity", json!(false));
            default(spec, "fsGroupPolicy", json!("ReadWriteOnceWithFSType"));
            default(spec, "volumeLifecycleModes", json!(["Persistent"]));
            default(spec, "requiresRepublish", json!(false));
            default(spec, "seLinuxMount", json!(false));
        }
        _ => {}
    }
    write_quantities(kind, object);
}

/// Sets what a claim or the template of a claim leaves out. A data source stands in both fields.
fn complete_claim(spec: &mut Value) {
    default(spec, "volumeMode", json!("Filesystem"));
    for field in ["dataSource", "dataSourceRef"] {
        // It is written even if the source is of the core group.
        if let Some(source) = spec[field].as_object_mut() {
            source.entry("apiGroup").or_insert(Value::Null);
        }
    }
    let (source, of_any_kind) = (spec["dataSource"].clone(), spec["dataSourceRef"].clone());
    if !source.is_null() {
        default(spec, "dataSourceRef", source);
    } else if !of_any_kind.is_null() && of_any_kind["namespace"].as_str().is_none_or(str::is_empty)
    {
        default(spec, "dataSource", of_any_kind);
    }
    if let Some(spec) = spec.as_object_mut() {
        spec.retain(|_, value| !value.is_null());
    }
}

fn complete_pod(pod: &mut Value) {
    pod["status"] = json!({"phase": "Pending"});
    let spec = &mut pod["spec"];
    default(spec, "restartPolicy", json!("Always"));
    default(spec, "terminationGracePeriodSeconds", json!(30));
    default(spec, "schedulerName", json!("default-scheduler"));
    for volume in spec["volumes"].as_array_mut().into_iter().flatten() {
        if let Some(claim) = volume.pointer_mut("/ephemeral/volumeClaimTemplate/spec") {
            complete_claim(claim);
        }
    }
}

fn default(object: &mut Value, field: &str, value: Value) {
    if object[field].is_null() {
        object[field] = value;
    }
}

fn add_finalizer(object: &mut Value, finalizer: &str) {
    let finalizers = object["metadata"]["finalizers"].as_array().cloned();
    let mut finalizers = finalizers.unwrap_or_default();
    if !finalizers.contains(&json!(finalizer)) {
        finalizers.push(json!(finalizer));
    }
    object["metadata"]["finalizers"] = json!(finalizers);
}

/// Writes the quantities of an object in their canonical form.
pub(super) fn write_quantities(kind: &Kind, object: &mut Value) {
    let places: &[&str] = match kind.kind.as_str() {
        "PersistentVolumeClaim" => &[
            "/spec/resources/requests",
            "/spec/resources/limits",
            "/status/capacity",
            "/status/allocatedResources",
        ],
        "PersistentVolume" => &["/spec/capacity"],
        _ => &[],
    };
    for place in places {
        let quantities = object.pointer_mut(place).and_then(Value::as_object_mut);
        for (_, value) in quantities.into_iter().flatten() {
            let text = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            if let Some(canonical) = quantity::canonical(&text) {
                *value = json!(canonical);
            }
        }
    }
}

/// Checks a new object, or the change of one. The error is the reason for a refusal.
pub(super) fn validate(kind: &Kind, old: Option<&Value>, new: &Value) -> Result<(), String> {
    if let Some(old) = old {
        let fields = IMMUTABLE.iter().find(|(plural, _)| *plural == kind.plural);
        for field in fields.map(|(_, fields)| *fields).unwrap_or_default() {
            if old.pointer(field) != new.pointer(field) {
                let name = field[1..].replace('/', ".");
                return Err(format!("{name}: Invalid value: field is immutable"));
            }
        }
    }
    match (kind.kind.as_str(), old) {
        ("PersistentVolumeClaim", _) => claim(old, new),
        ("PersistentVolume", _) => volume(old, new),
        ("Pod", Some(old)) => pod(old, new),
        ("VolumeSnapshot", None) => one_of(
            &new["spec"]["source"],
            ["persistentVolumeClaimName", "volumeSnapshotContentName"],
        ),
        ("VolumeSnapshotContent", None) => {
            one_of(&new["spec"]["source"], ["volumeHandle", "snapshotHandle"])
        }
        ("VolumeSnapshotContent", Some(old)) => {
            let mode = &old["spec"]["sourceVolumeMode"];
            if !mode.is_null() && *mode != new["spec"]["sourceVolumeMode"] {
                return Err("spec.sourceVolumeMode: can't be changed once set".to_owned());
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn one_of(source: &Value, fields: [&str; 2]) -> Result<(), String> {
    let [first, second] = fields;
    if source[first].is_null() == source[second].is_null() {
        return Err(format!(
            "spec.source: exactly one of {first} and {second} is needed"
        ));
    }
    Ok(())
}

/// Checks access modes.
fn modes(spec: &Value) -> Result<(), String> {
    let modes: Vec<&str> = spec["accessModes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if modes.is_empty() {
        return Err("spec.accessModes: Required value: at least 1 access mode is required".into());
    }
    if let Some(other) = modes.iter().find(|mode| !MODES.contains(mode)) {
        return Err(format!("spec.accessModes: Unsupported value: {other:?}"));
    }
    if modes.contains(&"ReadWriteOncePod") && modes.len() > 1 {
        let why = "may not use ReadWriteOncePod with other access modes";
        return Err(format!("spec.accessModes: Forbidden: {why}"));
    }
    Ok(())
}

/// Returns a size, which has to be positive.
fn size(value: &Value, field: &str) -> Result<i128, String> {
    let text = value
        .as_str()
        .ok_or_else(|| format!("{field}: Required value"))?;
    match quantity::nanos(text) {
        Some(size) if size > 0 => Ok(size),
        _ => Err(format!(
            "{field}: Invalid value: {text:?}: must be greater than zero"
        )),
    }
}

fn claim(old: Option<&Value>, new: &Value) -> Result<(), String> {
    let spec = &new["spec"];
    modes(spec)?;
    let field = "spec.resources[storage]";
    let requested = size(&spec["resources"]["requests"]["storage"], field)?;
    let (source, of_any_kind) = (&spec["dataSource"], &spec["dataSourceRef"]);
    if !source.is_null()
        && !of_any_kind.is_null()
        && ["apiGroup", "kind", "name"]
            .iter()
            .any(|field| source[*field] != of_any_kind[*field])
    {
        return Err("spec: Invalid value: dataSource: must match dataSourceRef".to_owned());
    }
    let Some(old) = old else { return Ok(()) };
    // What may change is taken from the old one, and then nothing may differ.
    let is_bound = old["status"]["phase"] == "Bound";
    let may_change = |field: &str| match field {
        "volumeName" => old["spec"]["volumeName"].as_str().is_none_or(str::is_empty),
        "storageClassName" => old["spec"]["storageClassName"].is_null(),
        "volumeAttributesClassName" | "resources" => is_bound,
        _ => false,
    };
    let fields = spec.as_object().into_iter().flatten();
    let old_fields = old["spec"].as_object().into_iter().flatten();
    let changed = fields.chain(old_fields).map(|(field, _)| field.as_str());
    if changed
        .filter(|field| spec[*field] != old["spec"][*field])
        .any(|field| !may_change(field))
    {
        let why = "spec is immutable after creation except resources.requests and \
                   volumeAttributesClassName for bound claims";
        return Err(format!("spec: Forbidden: {why}"));
    }
    let before = size(&old["spec"]["resources"]["requests"]["storage"], field).unwrap_or(0);
    let capacity = old["status"]["capacity"]["storage"]
        .as_str()
        .and_then(quantity::nanos);
    if requested < before && requested <= capacity.unwrap_or(0) {
        let why = "field can not be less than status.capacity";
        return Err(format!("spec.resources.requests.storage: Forbidden: {why}"));
    }
    if !old["status"]["currentVolumeAttributesClassName"].is_null()
        && spec["volumeAttributesClassName"]
            .as_str()
            .is_none_or(str::is_empty)
        && old["spec"]["volumeAttributesClassName"] != spec["volumeAttributesClassName"]
    {
        let why = "is forbidden when status.currentVolumeAttributesClassName is not nil";
        return Err(format!(
            "spec.volumeAttributesClassName: Forbidden: update to nil {why}"
        ));
    }
    Ok(())
}

/// True if a bound claim requests more than before.
pub(super) fn grows(old: &Value, new: &Value) -> bool {
    let requested = |claim: &Value| {
        let text = claim["spec"]["resources"]["requests"]["storage"].as_str();
        text.and_then(quantity::nanos).unwrap_or(0)
    };
    old["status"]["phase"] == "Bound" && requested(new) > requested(old)
}

fn volume(old: Option<&Value>, new: &Value) -> Result<(), String> {
    let spec = &new["spec"];
    modes(spec)?;
    size(&spec["capacity"]["storage"], "spec.capacity")?;
    if let Some(old) = old {
        let affinity = &old["spec"]["nodeAffinity"];
        if !affinity.is_null() && *affinity != spec["nodeAffinity"] {
            return Err("nodeAffinity: Invalid value: field is immutable".to_owned());
        }
        let class = &old["spec"]["volumeAttributesClassName"];
        if !class.is_null() && spec["volumeAttributesClassName"].is_null() {
            let why = "update from non-nil value to nil is forbidden";
            return Err(format!("spec.volumeAttributesClassName: Forbidden: {why}"));
        }
    }
    Ok(())
}

/// A pod's volumes and node never change by an update.
fn pod(old: &Value, new: &Value) -> Result<(), String> {
    if ["volumes", "nodeName"]
        .iter()
        .any(|field| old["spec"][*field] != new["spec"][*field])
    {
        let why = "pod updates may not change fields other than `spec.containers[*].image` and \
                   a few others";
        return Err(format!("spec: Forbidden: {why}"));
    }
    Ok(())
}
