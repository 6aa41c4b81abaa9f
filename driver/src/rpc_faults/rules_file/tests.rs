use rstest::rstest;

use super::*;

fn refused(yaml: &str) -> (String, String) {
    match read(yaml).unwrap_err() {
        RulesError::Field { field, why } => (field, why),
        other => panic!("{other}"),
    }
}

#[test]
fn a_file_with_every_field() {
    let set = read(
        "# a comment\n\
         seed: 7\n\
         rules:\n\
         - name: full\n  \
           method: [CreateVolume, csi.v1.Node/*]\n  \
           object: pvc-*\n  \
           claim: data-0\n  \
           namespace: shop\n  \
           node: n1\n  \
           times: 3\n  \
           probability: 0.5\n  \
           for: 10m\n  \
           delayBefore: 2s\n  \
           code: RESOURCE_EXHAUSTED\n  \
           message: the pool is full\n\
         - method: DeleteVolume\n  \
           delayAfter: 1m30s\n  \
           answer: lost\n\
         - {method: '*', answer: never}\n\
         - {method: Probe, delayBefore: 10ms}\n",
    )
    .unwrap();
    assert_eq!((set.seed, set.rules.len()), (7, 4));
    let [full, lost, never, slow] = &set.rules[..] else {
        unreachable!()
    };
    let methods = ["CreateVolume", "csi.v1.Node/*"].map(Pattern::new);
    let expected = Rule {
        name: "full".into(),
        methods: methods.into(),
        object: Some(Pattern::new("pvc-*")),
        claim: Some(Pattern::new("data-0")),
        namespace: Some(Pattern::new("shop")),
        node: Some(Pattern::new("n1")),
        times: Some(3),
        probability: Some(0.5),
        lifetime: Some(Duration::from_secs(600)),
        delay_before: Duration::from_secs(2),
        delay_after: Duration::ZERO,
        outcome: Outcome::Refused {
            code: Code::ResourceExhausted,
            message: "the pool is full".to_owned(),
        },
    };
    assert_eq!(*full, expected);
    let message = "fault rule \"rule-2\": the call is done, and its answer is lost".to_owned();
    let code = Code::Unavailable;
    assert_eq!(lost.outcome, Outcome::Lost { code, message });
    assert_eq!(
        (&*lost.name, lost.delay_after.as_secs(), lost.times),
        ("rule-2", 90, None)
    );
    assert_eq!(never.outcome, Outcome::Unanswered);
    assert_eq!(slow.outcome, Outcome::Answered);
    assert_eq!(slow.delay_before, Duration::from_millis(10));
}

#[rstest]
#[case::nothing("")]
#[case::comments("# none\n\n  # yet\n")]
#[case::document("---\n")]
#[case::no_rules("rules: []")]
#[case::only_a_seed("seed: 3")]
fn files_without_rules(#[case] yaml: &str) {
    assert!(read(yaml).unwrap().rules.is_empty());
}

#[test]
fn what_is_not_yaml_is_refused() {
    for yaml in ["rules: [", "seed: 1\nseed: 2"] {
        let error = read(yaml).unwrap_err();
        assert!(matches!(error, RulesError::Yaml(_)), "{yaml}: {error}");
    }
}

#[rstest]
#[case::list("- method: '*'", "the file", "is not a mapping")]
#[case::unknown("rule: []", "rule", "is unknown")]
#[case::no_list("rules: {}", "rules", "is not a list")]
#[case::seed("seed: -1", "seed", "number from 0")]
#[case::text("rules: [x]", "rules[0]", "is not a mapping")]
fn the_top_is_checked(#[case] yaml: &str, #[case] name: &str, #[case] part: &str) {
    let (field, why) = refused(yaml);
    assert_eq!(field, name, "{yaml}");
    assert!(why.contains(part), "{yaml}: {why}");
}

#[rstest]
#[case::no_method("code: ABORTED", "method", "is missing")]
#[case::mistyped("method: CreateVolumes, code: ABORTED", "method", "not a call of CSI")]
#[case::no_methods("method: [], code: ABORTED", "method", "has no call")]
#[case::number("method: 7, code: ABORTED", "method", "put it in quotes")]
#[case::unknown(
    "method: '*', metod: '*'",
    "metod",
    "is unknown; known are name, method"
)]
#[case::claim("method: '*', claim: 7, code: ABORTED", "claim", "put it in quotes")]
#[case::empty("method: '*', claim: '', code: ABORTED", "claim", "is empty")]
#[case::inner(
    "method: '*', object: 'pvc-*-0', code: ABORTED",
    "object",
    "before its end"
)]
#[case::inner_of_a_call("method: '*Volume', code: ABORTED", "method", "before its end")]
#[case::null("method: '*', node: null, code: ABORTED", "node", "is not text")]
#[case::escape(r#"method: '*', name: "a\nb", code: ABORTED"#, "name", "not printed")]
#[case::code("method: '*', code: FULL", "code", "\"FULL\" is not the gRPC code")]
#[case::success("method: '*', code: OK", "code", "is not the gRPC code")]
#[case::none("method: '*', times: 0, code: ABORTED", "times", "from 1 to 1000000")]
#[case::words("method: '*', times: three, code: ABORTED", "times", "from 1")]
#[case::share(
    "method: '*', probability: 1.5, code: ABORTED",
    "probability",
    "up to 1"
)]
#[case::never_drawn("method: '*', probability: 0, code: ABORTED", "probability", "above 0")]
#[case::no_unit("method: '*', delayBefore: '5'", "delayBefore", "is not a duration")]
#[case::long("method: '*', delayBefore: 11m", "delayBefore", "is longer than 600s")]
#[case::zero("method: '*', delayBefore: 0s", "delayBefore", "leave it out")]
#[case::lifetime("method: '*', for: 25h, code: ABORTED", "for", "is longer than")]
#[case::after(
    "method: '*', delayAfter: 1s, code: ABORTED",
    "delayAfter",
    "is not done"
)]
#[case::message("method: '*', message: full", "message", "needs a code")]
#[case::answer(
    "method: '*', answer: late",
    "answer",
    "neither \"lost\" nor \"never\""
)]
#[case::never("method: '*', answer: never, code: ABORTED", "answer", "no code")]
fn the_fields_of_a_rule_are_checked(#[case] rule: &str, #[case] name: &str, #[case] part: &str) {
    let yaml = format!("rules:\n- {{method: '*', code: ABORTED}}\n- {{{rule}}}");
    let (field, why) = refused(&yaml);
    assert_eq!(field, format!("rules[1].{name}"), "{yaml}");
    assert!(why.contains(part), "{yaml}: {why}");
}

#[test]
fn a_rule_that_does_nothing_is_refused() {
    let (field, why) = refused("rules: [{method: '*', times: 3}]");
    assert_eq!(field, "rules[0]");
    assert!(why.contains("does nothing"), "{why}");
}

#[test]
fn names_are_those_of_one_rule() {
    let rule = |name: &str| format!("{{name: {name}, method: '*', code: ABORTED}}");
    let (field, why) = refused(&format!("rules: [{}, {}]", rule("a"), rule("a")));
    assert_eq!(field, "rules[1].name");
    assert!(why.contains("earlier rule"), "{why}");
    // The name that a rule without one gets counts, too.
    let yaml = format!(
        "rules: [{}, {{method: '*', code: ABORTED}}]",
        rule("rule-2")
    );
    assert_eq!(refused(&yaml).0, "rules[1].name");
}

#[test]
fn rules_and_texts_are_bounded() {
    let many = |count: usize| {
        let rules = vec!["- {method: '*', code: ABORTED}"; count];
        format!("rules:\n{}", rules.join("\n"))
    };
    assert_eq!(read(&many(MAX_RULES)).unwrap().rules.len(), MAX_RULES);
    let (name, why) = refused(&many(MAX_RULES + 1));
    assert_eq!(name, "rules");
    assert!(why.contains("101 rules, and may have 100"), "{why}");
    let long = "x".repeat(MAX_PATTERN + 1);
    let yaml = format!("rules: [{{method: '*', object: {long}, code: ABORTED}}]");
    assert!(refused(&yaml).1.contains("more than 256 bytes"));
}

#[test]
fn both_forms_of_a_code() {
    for word in ["RESOURCE_EXHAUSTED", "ResourceExhausted"] {
        let set = read(&format!("rules: [{{method: '*', code: {word}}}]")).unwrap();
        let Outcome::Refused { code, .. } = set.rules[0].outcome else {
            panic!("{set:?}");
        };
        assert_eq!(code, Code::ResourceExhausted);
    }
}
