use hostloop_document::typescript::check_types;
use schemars::generate::SchemaSettings;
use serde_json::json;

use super::*;

/// The page reads the messages by types that are made from these definitions.
#[test]
fn the_page_has_these_types() {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let schema = settings
        .into_generator()
        .into_root_schema_for::<Sent<'static>>();
    check_types(
        "kubectl/ui/src/model/wire.generated.ts",
        "Message",
        schema.as_value(),
        "kubectl/src/ui/message.rs",
    );
}

#[test]
fn messages_change_the_slots_they_name() {
    let filled = |slot: &str| Slot::Filled(slot.to_owned());
    let source = EventProcess {
        node: "n1".to_owned(),
        process: "node".to_owned(),
    };
    let lives = ["claim:1".to_owned(), "volume:v".to_owned()];
    let verdict = ShownVerdict {
        words: "Bound".to_owned(),
        tone: Tone::Good,
        stuck: None,
        note: None,
    };
    for (message, kind, slot) in [
        (
            Message::set("Pod", "demo/a", &json!({})),
            "object",
            filled("object/Pod/demo/a"),
        ),
        (
            Message::deleted("Pod", "demo/a"),
            "object",
            Slot::Emptied("object/Pod/demo/a".to_owned()),
        ),
        (
            Message::event(&source, &json!({"seq": 1})),
            "event",
            Slot::None,
        ),
        (Message::gap(&source, 3), "gap", Slot::None),
        (
            Message::report("n1", &json!({})),
            "report",
            filled("report/n1"),
        ),
        (
            Message::extents("n1", "v", &[]),
            "extents",
            filled("extents/n1/v"),
        ),
        (
            Message::no_extents("n1", "v"),
            "extents",
            Slot::Emptied("extents/n1/v".to_owned()),
        ),
        (
            Message::verdict(&lives, &verdict),
            "verdict",
            filled("verdict/claim:1 volume:v"),
        ),
        (
            Message::no_verdict(&lives),
            "verdict",
            Slot::Emptied("verdict/claim:1 volume:v".to_owned()),
        ),
        (
            Message::problem("watch", "why"),
            "problem",
            filled("problem/watch"),
        ),
        (
            Message::solved("watch"),
            "solved",
            Slot::Emptied("problem/watch".to_owned()),
        ),
        (
            Message::exploration(&json!({})),
            "exploration",
            filled("exploration"),
        ),
    ] {
        let json: Value = serde_json::from_str(&message.text).unwrap();
        assert_eq!((&json["type"], &message.slot), (&json!(kind), &slot));
        assert!(json["t"].as_u64().is_some(), "{json}");
    }
}
