use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn keep<K: Resource>(form: &mut Encoding<K>, object: &Arc<K>) -> StoredObject<K> {
    let mut kept = StoredObject::Open(object.clone());
    form.pack(&mut kept);
    kept
}

/// A typical claim, before and after it is bound.
fn claim(number: u64, bound: bool) -> Arc<PersistentVolumeClaim> {
    let uid = format!(
        "0c4f{number:04x}-5a31-4f0b-9d{number:02x}-{:012x}",
        number * 77
    );
    let mut claim = json!({
        "metadata": {
            "name": format!("data-{number}"), "namespace": "default", "uid": uid,
            "resourceVersion": (1000 + 7 * number).to_string(),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "db"},
            "annotations": {"volume.kubernetes.io/storage-provisioner": "hostloop.csi.dev"},
            "finalizers": ["kubernetes.io/pvc-protection"],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}},
            "storageClassName": "hostloop", "volumeMode": "Filesystem",
        },
        "status": {"phase": "Pending"},
    });
    if bound {
        claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
        claim["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"] = json!("yes");
        claim["spec"]["volumeName"] = json!(format!("pvc-{uid}"));
        claim["status"] = json!({
            "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "64Mi"},
        });
    }
    Arc::new(serde_json::from_value(claim).expect("a claim"))
}

#[test]
fn what_others_have_said_is_not_kept_again() {
    let mut form = Encoding::packed();
    let json = serde_json::to_vec(&*claim(1, true)).expect("JSON").len();
    // Some claims are still pending, so the test covers both states.
    for number in 0..50 {
        keep(&mut form, &claim(number, number % 3 > 0));
    }
    for bound in [false, true] {
        let kept = keep(&mut form, &claim(99, bound));
        assert_eq!(kept.get(), claim(99, bound));
        let rest = kept.rest().expect("it is packed");
        assert!(rest * 4 < json, "{rest} of {json}, bound: {bound}");
    }
}

#[test]
fn an_object_outlives_its_pattern() {
    let mut form = Encoding::packed();
    let first = keep(&mut form, &claim(1, false));
    let odd: PersistentVolumeClaim = crate::testing::read(json!({
        "metadata": {"name": "z", "annotations": {"note": "nothing that others have ".repeat(40)}},
    }));
    let odd = Arc::new(odd);
    let second = keep(&mut form, &odd);
    let third = keep(&mut form, &claim(3, true));
    drop(form);
    assert_eq!(first.get(), claim(1, false));
    assert_eq!(second.get(), odd);
    assert_eq!(third.get(), claim(3, true));
}

/// A claim with a label of this length.
fn labelled(name: &str, length: usize) -> Arc<PersistentVolumeClaim> {
    let metadata = json!({"name": name, "labels": {"l": "x".repeat(length)}});
    let claim: PersistentVolumeClaim = crate::testing::read(json!({ "metadata": metadata }));
    Arc::new(claim)
}

/// A small object that stays keeps no large one in memory that is gone.
#[test]
fn a_large_object_is_no_pattern_of_others() {
    for (length, is_pattern) in [(1_000, true), (15_000, false)] {
        let mut form = Encoding::packed();
        let first = keep(&mut form, &labelled("a", length));
        let second = keep(&mut form, &labelled("b", length));
        let patterns = [&first, &second].map(|kept| match kept {
            StoredObject::Packed { pattern, .. } => Arc::as_ptr(pattern),
            StoredObject::Open(_) => panic!("it is packed"),
        });
        assert_eq!(patterns[0] == patterns[1], is_pattern, "{length} bytes");
        assert_eq!(second.get(), labelled("b", length));
    }
}

/// An object that stays keeps its dictionary in memory, which counts for another one that is gone.
/// So a user could have many of both.
#[test]
fn few_dictionaries_outlive_their_objects() {
    fn noisy(name: &str, number: usize) -> StoredObject<PersistentVolumeClaim> {
        let labels = json!({"l": crate::testing::noise(number, 1_000)});
        let metadata = json!({"name": name, "labels": labels});
        StoredObject::Open(Arc::new(crate::testing::read(
            json!({ "metadata": metadata }),
        )))
    }
    fn keep_second(
        form: &mut Encoding<PersistentVolumeClaim>,
        number: usize,
    ) -> (bool, StoredObject<PersistentVolumeClaim>) {
        let [mut first, mut second] = ["a", "b"].map(|name| noisy(name, number));
        form.pack(&mut first);
        let bytes = form.pack(&mut second).expect("a packed kind");
        (bytes > 1_000, second)
    }
    let mut form = Encoding::packed();
    let kept: Vec<_> = (0..MAX_DICTIONARIES + 10)
        .map(|number| keep_second(&mut form, number))
        .collect();
    let counted = kept.iter().filter(|(counts_itself, _)| *counts_itself);
    assert_eq!(counted.count(), 9);
    drop(kept);
    assert!(!keep_second(&mut form, 1_000).0, "the others are gone");
}

proptest! {
    #[test]
    fn all_are_as_they_were(
        metadata in vec((".{0,40}", btree_map("[a-z/.]{0,12}", ".{0,300}", 0..6)), 1..20),
    ) {
        let objects = metadata.into_iter().map(|(name, annotations)| {
            let mut claim = PersistentVolumeClaim::default();
            claim.metadata.name = Some(name);
            claim.metadata.annotations = Some(annotations);
            Arc::new(claim)
        });
        let objects: Vec<_> = objects.collect();
        let mut form = Encoding::packed();
        let kept: Vec<_> = objects.iter().map(|object| keep(&mut form, object)).collect();
        for (object, kept) in objects.iter().zip(&kept) {
            prop_assert_eq!(&kept.get(), object);
        }
    }
}
