use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

const MEMBERS: &[(&str, Keep)] = &[
    (
        "metadata",
        Keep::Members(&[
            ("name", Keep::Whole),
            ("namespace", Keep::Whole),
            ("uid", Keep::Whole),
            ("resourceVersion", Keep::Whole),
            ("finalizers", Keep::Whole),
            (
                "annotations",
                Keep::Members(&[("kept.example/a", Keep::Whole)]),
            ),
        ]),
    ),
    (
        "spec",
        Keep::Members(&[
            ("whole", Keep::Whole),
            (
                "list",
                Keep::Members(&[("name", Keep::Whole), ("empty", Keep::Members(&[]))]),
            ),
        ]),
    ),
];

const SMALL: KeptFields = KeptFields {
    plural: "things",
    members: MEMBERS,
    max: 2000,
    blank: r#","spec":{"whole":0}"#,
};
const ANY_SIZE: KeptFields = KeptFields {
    max: usize::MAX,
    ..SMALL
};

/// The answer after trimming, in pieces of these sizes, again and again.
fn trimmed(kind: &'static KeptFields, answer: AnswerKind, json: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut trimmer = Trimmer::new(kind, answer);
    let (mut kept, mut rest) = (Vec::new(), json);
    for size in sizes.iter().cycle() {
        let (piece, others) = rest.split_at((*size).min(rest.len()));
        trimmer.push(piece, &mut kept);
        rest = others;
        if rest.is_empty() {
            break;
        }
    }
    kept
}

fn text(kind: &'static KeptFields, answer: AnswerKind, json: &str) -> String {
    let whole = trimmed(kind, answer, json.as_bytes(), &[json.len().max(1)]);
    let bytewise = trimmed(kind, answer, json.as_bytes(), &[1]);
    assert_eq!(
        String::from_utf8_lossy(&whole),
        String::from_utf8_lossy(&bytewise),
        "{json}"
    );
    String::from_utf8(whole).expect("text")
}

#[test]
fn answers_lose_what_is_not_kept() {
    use AnswerKind::{List, Object, Watch};
    for (what, answer, json, expected) in [
        ("nothing", Object, "", ""),
        ("an empty object", Object, "{}", "{}"),
        (
            "members",
            Object,
            r#"{"kind":"Thing","apiVersion":"v1","metadata":{"generateName":"x-","name":"x-1",
                "managedFields":[{"a":{"b":[1,2]}}],"annotations":{"other":"{\"}","kept.example/a":"b"}},
                "data":{"c":"d"},"spec":{"other":[],"whole":{"e":[true,null]}}}"#,
            concat!(
                r#"{"kind":"Thing","apiVersion":"v1","metadata":{"name":"x-1","#,
                r#""annotations":{"kept.example/a":"b"}},"spec":{"whole":{"e":[true,null]}}}"#
            ),
        ),
        (
            "lists of objects",
            Object,
            r#"{"spec":{"list":[{"name":"a","x":1},{"x":2},{"empty":{"y":3}},4,"five"]}}"#,
            r#"{"spec":{"list":[{"name":"a"},{},{"empty":{}},4,"five"]}}"#,
        ),
        (
            "values where objects are expected",
            Object,
            r#"{"metadata":null,"spec":-1.5e3}"#,
            r#"{"metadata":null,"spec":-1.5e3}"#,
        ),
        (
            "texts with brackets, quotes and escapes",
            Object,
            r#"{"x":"]}\\\"{","spec":{"x":"\\","whole":"]}\\\"{ \u003c"}}"#,
            r#"{"spec":{"whole":"]}\\\"{ \u003c"}}"#,
        ),
        (
            "a key that only ends as a kept one",
            Object,
            r#"{"spec":{"\"whole":1,"whole\\":2,"whole":3}}"#,
            r#"{"spec":{"whole":3}}"#,
        ),
        (
            "a status instead of an object",
            Object,
            r#"{"kind":"Status","metadata":{},"status":"Success","code":200,"details":{"name":"x"}}"#,
            r#"{"kind":"Status","metadata":{},"status":"Success","code":200}"#,
        ),
        (
            "a list",
            List,
            r#"{"kind":"ThingList","metadata":{"resourceVersion":"5","continue":"t","x":1},
                "items":[{"metadata":{"name":"a","x":2}},{"metadata":{"x":3},"x":4}]}"#,
            concat!(
                r#"{"kind":"ThingList","metadata":{"resourceVersion":"5","continue":"t"},"#,
                r#""items":[{"metadata":{"name":"a"}},{"metadata":{}}]}"#
            ),
        ),
        (
            "a list without objects",
            List,
            r#"{"items":null}"#,
            r#"{"items":null}"#,
        ),
        (
            "events",
            Watch,
            concat!(
                r#"{"type":"ADDED","object":{"metadata":{"name":"a","x":1}}}"#,
                "\n",
                r#"{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}"#,
                "\n"
            ),
            concat!(
                r#"{"type":"ADDED","object":{"metadata":{"name":"a"}}}"#,
                "\n",
                r#"{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}"#,
                "\n"
            ),
        ),
    ] {
        assert_eq!(text(&ANY_SIZE, answer, json), expected, "{what}");
    }
}

fn thing(name: &str, change: Value) -> Value {
    let mut thing = json!({"metadata": {"name": name, "namespace": "ns", "uid": "u",
        "resourceVersion": "7", "labels": {"a": "b"}}});
    json_patch::merge(&mut thing, &change);
    thing
}

#[test]
fn what_is_too_large_is_only_named() {
    let large = |size: usize| json!({"spec": {"whole": "x".repeat(size)}});
    let many = json!({"metadata": {"finalizers": vec!["a/b"; 100]}});
    let unread = json!({"metadata": {"annotations": {"other": "x".repeat(300_000)}}, "data": many});
    for (what, change, is_left_out) in [
        ("nothing else", json!({}), false),
        ("a text within the limit", large(500), false),
        ("a text beyond it", large(5_000), true),
        ("many small values", many.clone(), true),
        ("fields that no controller reads", unread, false),
    ] {
        let list =
            json!({"items": [thing("a", json!({})), thing("b", change), thing("c", json!({}))]});
        let kept = text(&SMALL, AnswerKind::List, &list.to_string());
        let kept: Value = serde_json::from_str(&kept).expect("JSON");
        let names: Vec<_> = kept["items"].as_array().expect("a list").iter().collect();
        let [a, b, c] = names[..] else {
            panic!("{what}: {names:?}")
        };
        let left_out = |one: &Value| one["metadata"]["annotations"].get(LEFT_OUT).is_some();
        assert_eq!(
            [a, b, c].map(left_out),
            [false, is_left_out, false],
            "{what}"
        );
        for (member, expected) in [("name", "b"), ("namespace", "ns"), ("uid", "u")] {
            assert_eq!(b["metadata"][member], expected, "{what}");
        }
        assert_eq!(b["metadata"]["resourceVersion"], "7", "{what}");
    }
}

/// A user's own annotation of that name does not hide an object.
#[test]
fn only_the_size_leaves_an_object_out() {
    let object = thing("a", json!({"metadata": {"annotations": {LEFT_OUT: ""}}}));
    let kept = text(&SMALL, AnswerKind::Object, &object.to_string());
    assert!(!kept.contains(LEFT_OUT), "{kept}");
}

/// An object of the API server's largest size, and one larger than that, need no memory.
#[test]
fn a_large_object_is_held_only_up_to_the_limit() {
    let mut trimmer = Trimmer::new(&SMALL, AnswerKind::Object);
    let mut kept = Vec::new();
    trimmer.push(br#"{"spec":{"whole":""#, &mut kept);
    for _ in 0..1000 {
        trimmer.push(&[b'x'; 16 * 1024], &mut kept);
        let held = trimmer.object.as_ref().expect("an object").held();
        assert!(held <= 2 * SMALL.max && kept.is_empty(), "{held}");
    }
    trimmer.push(br#"","list":[]}}"#, &mut kept);
    assert!(kept.len() < 200, "{}", kept.len());
}

/// What is kept of a parsed value.
fn expected(value: &Value, keep: Keep) -> Value {
    match (value, keep) {
        (Value::Object(object), Keep::Members(members)) => {
            let kept = members.iter().filter_map(|(name, keep)| {
                Some(((*name).to_owned(), expected(object.get(*name)?, *keep)))
            });
            Value::Object(kept.collect())
        }
        (Value::Array(list), Keep::Members(_)) => {
            list.iter().map(|one| expected(one, keep)).collect()
        }
        _ => value.clone(),
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z\"\\\\{}\\[\\],: \u{e9}\u{1f600}\n]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 6, |inner| {
        let key = prop_oneof![
            3 => prop::sample::select(vec![
                "metadata", "name", "spec", "whole", "list", "empty", "annotations",
                "kept.example/a", "finalizers", "items",
            ]).prop_map(str::to_owned),
            1 => "[a-z\"\\\\{}]{0,4}",
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

proptest! {
    #[test]
    fn the_text_is_trimmed_as_the_value(
        members in prop::collection::vec(any_value(), 2),
        sizes in prop::collection::vec(1..9_usize, 1..8),
        is_pretty in any::<bool>(),
    ) {
        let object = json!({"metadata": members[0], "other": members[0], "spec": members[1]});
        let json = if is_pretty { format!("{object:#}") } else { object.to_string() };
        let kept = trimmed(&ANY_SIZE, AnswerKind::Object, json.as_bytes(), &sizes);
        let kept: Value = serde_json::from_slice(&kept).expect("JSON");
        prop_assert_eq!(kept, expected(&object, Keep::Members(MEMBERS)));
    }

    #[test]
    fn nonsense_has_an_end(
        bytes in prop::collection::vec(
            prop::sample::select(b"{}[]\",:\\ \nmetadataspec1".to_vec()), 0..60,
        ),
        sizes in prop::collection::vec(1..9_usize, 1..4),
    ) {
        for answer in [AnswerKind::Object, AnswerKind::List, AnswerKind::Watch] {
            let kept = trimmed(&SMALL, answer, &bytes, &sizes);
            prop_assert!(kept.len() <= 2 * bytes.len() + 300);
        }
    }
}
