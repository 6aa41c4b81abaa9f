use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::testing::{noise, read};

fn keep<K: Resource>(form: &mut Encoding<K>, object: &Arc<K>) -> StoredObject<K> {
    let mut kept = StoredObject::Open(object.clone());
    form.pack(&mut kept, None);
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
fn an_object_outlives_its_dictionary() {
    let mut form = Encoding::packed();
    let first = keep(&mut form, &claim(1, false));
    let odd: PersistentVolumeClaim = read(json!({
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
    let claim: PersistentVolumeClaim = read(json!({ "metadata": metadata }));
    Arc::new(claim)
}

/// A small object that stays keeps no large one in memory that is gone.
#[test]
fn a_large_object_is_no_dictionary_of_others() {
    for (length, is_dictionary) in [(1_000, true), (15_000, false)] {
        let mut form = Encoding::packed();
        let first = keep(&mut form, &labelled("a", length));
        let second = keep(&mut form, &labelled("b", length));
        let dictionaries = [&first, &second].map(|kept| match kept {
            StoredObject::Packed { dictionary, .. } => Arc::as_ptr(dictionary),
            StoredObject::Open(_) => panic!("it is packed"),
        });
        assert_eq!(
            dictionaries[0] == dictionaries[1],
            is_dictionary,
            "{length} bytes"
        );
        assert_eq!(second.get(), labelled("b", length));
    }
}

/// Packs two claims of a namespace that are alike, with a label that does not compress. Returns
/// whether the second one has a dictionary of its own.
fn keep_two(
    form: &mut Encoding<PersistentVolumeClaim>,
    namespace: &str,
    number: usize,
) -> (bool, StoredObject<PersistentVolumeClaim>) {
    let labels = json!({"l": noise(number, 1_000)});
    let [mut first, mut second] = ["a", "b"].map(|name| {
        let metadata = json!({"namespace": namespace, "name": name, "labels": labels});
        StoredObject::Open(Arc::new(read(json!({ "metadata": metadata }))))
    });
    form.pack(&mut first, None);
    let bytes = form.pack(&mut second, None).expect("a packed kind");
    (bytes > 1_000, second)
}

/// An object that stays keeps its dictionary in memory, which counts for another one that is gone.
/// So a user could have many of both.
#[rstest]
#[case::one_namespace(1, MAX_DICTIONARIES_OF_HOLDER + 1)]
#[case::two_namespaces(2, 2 * MAX_DICTIONARIES_OF_HOLDER + 1)]
#[case::many_namespaces(MAX_DICTIONARIES + 50, MAX_DICTIONARIES + 1)]
fn few_dictionaries_outlive_their_objects(#[case] namespaces: usize, #[case] shared: usize) {
    const PAIRS: usize = MAX_DICTIONARIES + 50;
    let mut form = Encoding::packed();
    let kept: Vec<_> = (0..PAIRS)
        .map(|number| keep_two(&mut form, &format!("team-{}", number % namespaces), number))
        .collect();
    let counted = kept.iter().filter(|(counts_itself, _)| *counts_itself);
    assert_eq!(counted.count(), PAIRS - shared);
    drop(kept);
    assert!(
        !keep_two(&mut form, "team-0", 1_000).0,
        "the others are gone"
    );
}

/// Whatever others store in between, the objects of a namespace need one dictionary.
#[rstest]
#[case::before_all(2 * MAX_DICTIONARIES, 0)]
#[case::between_all(0, 1)]
#[case::more_between_all(0, 2)]
fn one_namespace_does_not_decide_what_others_take(#[case] before: usize, #[case] between: usize) {
    let mut form = Encoding::packed();
    let mut hostile = Vec::new();
    let mut add = |form: &mut Encoding<_>, number| hostile.push(keep_two(form, "hostile", number));
    for number in 0..before {
        add(&mut form, number);
    }
    let (mut bytes, mut near) = (Vec::new(), None);
    for number in 0..100 {
        for other in 0..between {
            add(&mut form, 1_000 * (other + 1) + number as usize);
        }
        let mut kept = StoredObject::Open(claim(number, true));
        bytes.push(form.pack(&mut kept, near).expect("a packed kind"));
        near = kept.dictionary();
    }
    let large = bytes.iter().filter(|bytes| **bytes > 300).count();
    assert!(large <= 1, "{bytes:?}");
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
