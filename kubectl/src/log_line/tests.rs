use super::*;

const TIME: &str = "2026-01-02T03:04:05.678901Z";

fn parse(rest: &str) -> Option<LogLine> {
    LogLine::parse(&format!("{TIME} {rest}"))
}

#[test]
fn text_lines() {
    for (rest, level, target, message, fields) in [
        (
            " INFO hostloop::call: call",
            "INFO",
            "hostloop::call",
            "call",
            vec![],
        ),
        (
            r#" WARN h::x: reconcile failed namespace="demo" claim="data" error=no room: 5 > 3"#,
            "WARN",
            "h::x",
            "reconcile failed",
            vec![
                ("namespace", "demo"),
                ("claim", "data"),
                ("error", "no room: 5 > 3"),
            ],
        ),
        (
            r#"ERROR h: call about="a \"b\" c=d" code=OK ms=1.5"#,
            "ERROR",
            "h",
            "call",
            vec![("about", "a \"b\" c=d"), ("code", "OK"), ("ms", "1.5")],
        ),
        (
            r#" INFO h: error="a\nb\\" node="n1""#,
            "INFO",
            "h",
            "",
            vec![("error", "a\nb\\"), ("node", "n1")],
        ),
        (
            " INFO h: x == y and a=1",
            "INFO",
            "h",
            "x == y and",
            vec![("a", "1")],
        ),
        (
            r#" INFO h: open about="end"#,
            "INFO",
            "h",
            "open",
            vec![("about", "\"end")],
        ),
        (
            " INFO h: größe ä=1 b=ü",
            "INFO",
            "h",
            "größe ä=1",
            vec![("b", "ü")],
        ),
        (
            " INFO h: empty a= b=2",
            "INFO",
            "h",
            "empty",
            vec![("a", ""), ("b", "2")],
        ),
    ] {
        let line = parse(rest).unwrap();
        let got: Vec<(&str, &str)> = line
            .fields
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        assert_eq!(
            (&*line.level, &*line.target, &*line.message, got),
            (level, target, message, fields),
            "{rest}"
        );
    }
}

#[test]
fn other_lines() {
    for text in [
        "",
        "   at thread",
        "2026 INFO h: m",
        "{",
        r#"{"level":"INFO"}"#,
        TIME,
    ] {
        assert_eq!(LogLine::parse(text), None, "{text}");
    }
    assert_eq!(parse("INFO"), None);
    assert_eq!(parse(" INFO no target"), None);
}

#[test]
fn both_formats_have_the_same_calls() {
    let text = parse(
        r#" WARN hostloop::call: call method="NodeStageVolume" about="vol-1" code=Internal ms=12.25 error="mkfs \"x\"""#,
    );
    let json = format!(
        r#"{{"timestamp":"{TIME}","level":"WARN","message":"call","method":"NodeStageVolume","about":"vol-1","code":"Internal","ms":12.25,"error":"mkfs \"x\"","target":"hostloop::call"}}"#,
    );
    let call = LoggedCall {
        time: TIME.parse().unwrap(),
        method: "NodeStageVolume".to_owned(),
        about: "vol-1".to_owned(),
        code: "Internal".to_owned(),
        ms: "12.25".to_owned(),
        error: Some("mkfs \"x\"".to_owned()),
    };
    assert_eq!(text.unwrap().call(), Some(call.clone()));
    assert_eq!(LogLine::parse(&json).unwrap().call(), Some(call));
    assert_eq!(parse(" INFO h: call method=\"a\"").unwrap().call(), None);
}

/// The lines of the program's own logger are read, so a change of its format is noticed.
#[test]
fn lines_of_the_logger() {
    use std::io::Write;
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tracing_subscriber::fmt;
    use tracing_subscriber::layer::SubscriberExt;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let (text, json) = (Lines::default(), Lines::default());
    let (to_text, to_json) = (text.clone(), json.clone());
    let subscriber = tracing_subscriber::registry()
        .with(
            fmt::layer()
                .with_ansi(false)
                .with_writer(move || to_text.clone()),
        )
        .with(
            fmt::layer()
                .json()
                .flatten_event(true)
                .with_writer(move || to_json.clone()),
        );
    tracing::subscriber::with_default(subscriber, || {
        let (about, error) = ("a \"b\"\nc=d", "no room");
        tracing::warn!(target: "hostloop::call", method = "M", about, code = %"OK", ms = 1.5, error, "call");
    });
    for lines in [text, json] {
        let bytes = lines.0.lock().clone();
        let line = String::from_utf8(bytes).unwrap();
        let parsed = LogLine::parse(line.trim_end()).unwrap_or_else(|| panic!("{line}"));
        assert_eq!(
            (&*parsed.level, &*parsed.message),
            ("WARN", "call"),
            "{line}"
        );
        let call = parsed.call().unwrap();
        assert_eq!(
            (
                &*call.method,
                &*call.about,
                &*call.code,
                &*call.ms,
                call.error.as_deref()
            ),
            ("M", "a \"b\"\nc=d", "OK", "1.5", Some("no room")),
            "{line}"
        );
    }
}
