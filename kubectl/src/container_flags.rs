//! Flags of the program in a container, as its specification has them.

use k8s_openapi::api::core::v1::{Container, EnvVar};

/// The most bytes of a text and the values in it. Any user who may create a Deployment writes them,
/// and a few variables that name each other would fill the memory.
const MOST_READ: usize = 64 << 10;

/// The values of a flag: from the command line, or from its environment variable.
pub(crate) fn flag_values(container: &Container, name: &str) -> impl Iterator<Item = String> {
    let variables = container.env.as_deref().unwrap_or_default();
    let mut given: Vec<(&[EnvVar], &str)> = command_line_values(container, name)
        .into_iter()
        .map(|value| (variables, value))
        .collect();
    if given.is_empty() {
        let name = format!("HOSTLOOP_{}", name.to_ascii_uppercase().replace('-', "_"));
        given.extend(position(variables, &name).and_then(|at| {
            let value = variables[at].value.as_deref()?;
            Some((&variables[..at], value))
        }));
    }
    given
        .into_iter()
        .map(|(variables, text)| with_values(variables, text))
}

/// The values of a flag on the command line: `--flag=value`, or `--flag value`. A flag without a
/// value is `true`.
fn command_line_values<'a>(container: &'a Container, name: &str) -> Vec<&'a str> {
    let mut words = container
        .command
        .iter()
        .chain(&container.args)
        .flatten()
        .peekable();
    let mut values: Vec<&'a str> = Vec::new();
    while let Some(word) = words.next() {
        match word
            .strip_prefix("--")
            .and_then(|flag| flag.strip_prefix(name))
        {
            Some("") => {
                let value = words.next_if(|next| !next.starts_with('-'));
                values.push(value.map_or("true", String::as_str));
            }
            Some(rest) => values.extend(rest.strip_prefix('=')),
            None => {}
        }
    }
    values
}

/// The value of an environment variable.
pub(crate) fn variable<'a>(container: &'a Container, name: &str) -> Option<&'a str> {
    let variables = container.env.as_deref()?;
    variables[position(variables, name)?].value.as_deref()
}

/// Where a variable is. As in Kubernetes, the last of equal names counts.
fn position(variables: &[EnvVar], name: &str) -> Option<usize> {
    variables.iter().rposition(|variable| variable.name == name)
}

/// A text with the values of these variables where it names them, such as `$(POOL_DIR)`. As for
/// kubelet, a value in turn names variables before its own alone, and `$$` is a `$`. What has no
/// value in the specification stays as it is, and so does a text that would be too long.
fn with_values(variables: &[EnvVar], text: &str) -> String {
    let mut whole = String::new();
    let mut read = text.len();
    // What is still to be read, the innermost value last, each with the variables that it may name.
    let mut unread = vec![(variables, text)];
    while let Some((variables, part)) = unread.pop() {
        if read > MOST_READ {
            return text.to_owned();
        }
        let Some((before, after)) = part.split_once('$') else {
            whole.push_str(part);
            continue;
        };
        whole.push_str(before);
        if let Some(rest) = after.strip_prefix('$') {
            whole.push('$');
            unread.push((variables, rest));
            continue;
        }
        let reference = after
            .strip_prefix('(')
            .and_then(|inner| inner.split_once(')'));
        let Some((name, rest)) = reference else {
            whole.push('$');
            unread.push((variables, after));
            continue;
        };
        unread.push((variables, rest));
        let known = position(variables, name).filter(|at| variables[*at].value_from.is_none());
        let Some(at) = known else {
            whole.push_str(&format!("$({name})"));
            continue;
        };
        let value = variables[at].value.as_deref().unwrap_or_default();
        read += value.len();
        unread.push((&variables[..at], value));
    }
    whole
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::test_objects::read;

    fn container(args: &[&str], env: &Value) -> Container {
        read(json!({"name": "c", "args": args, "env": env}))
    }

    /// The first value of a flag.
    fn flag(container: &Container, name: &str) -> Option<String> {
        flag_values(container, name).next()
    }

    #[rstest]
    #[case(&["--enable-attach=$(ATTACH)"], "enable-attach", Some("false"))]
    #[case(&["run", "--enable-attach"], "enable-attach", Some("true"))]
    #[case(&["--enable-attach-more=1"], "enable-attach", None)]
    #[case::two_words(&["run", "--pool", "b=/$(ATTACH)"], "pool", Some("b=/false"))]
    #[case::the_next_flag_is_no_value(&["--enable-attach", "--a=b"], "enable-attach", Some("true"))]
    #[case::a_value_is_no_flag(&["--a", "--pool=b=/p"], "a", Some("true"))]
    #[case(&[], "reject-multi-node", Some("true"))]
    #[case(&["--reject-multi-node=false"], "reject-multi-node", Some("false"))]
    #[case(&["--a=$(NONE)x$(EMPTY)y"], "a", Some("$(NONE)xy"))]
    #[case(&[], "pool", Some("a=/false$(FIELD)$(LATER)"))]
    #[case(&["--pool=b=/$(ATTACH)"], "pool", Some("b=/false"))]
    #[case::arguments_name_all(&["--a=$(LATER)"], "a", Some("later"))]
    #[case::a_value_names_those_before(&["--a=$(EARLIER)"], "a", Some("$(LATER)"))]
    #[case::escaped(&["--a=$$(ATTACH)"], "a", Some("$(ATTACH)"))]
    #[case::escaped_dollar(&["--a=$$$(ATTACH)"], "a", Some("$false"))]
    #[case::escaped_in_a_value(&["--a=$(ESCAPED)"], "a", Some("$(ATTACH)"))]
    #[case::other_dollars(&["--a=$ATTACH$(ATTACH$"], "a", Some("$ATTACH$(ATTACH$"))]
    #[case::the_last_of_equal_names(&["--a=$(TWICE)"], "a", Some("second"))]
    #[case::itself_before(&["--a=$(PATH)"], "a", Some("/first:/second"))]
    fn flags(#[case] args: &[&str], #[case] name: &str, #[case] value: Option<&str>) {
        let env = json!([
            {"name": "ATTACH", "value": "false"},
            {"name": "EMPTY"},
            {"name": "HOSTLOOP_REJECT_MULTI_NODE", "value": "true"},
            {"name": "FIELD", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "BOTH", "value": "$(ATTACH)$(EMPTY)$(FIELD)"},
            {"name": "ESCAPED", "value": "$$(ATTACH)"},
            {"name": "TWICE", "value": "first"},
            {"name": "TWICE", "value": "second"},
            {"name": "PATH", "value": "/first"},
            {"name": "PATH", "value": "$(PATH):/second"},
            {"name": "HOSTLOOP_POOL", "value": "a=/$(BOTH)$(LATER)"},
            {"name": "EARLIER", "value": "$(LATER)"},
            {"name": "LATER", "value": "later"},
        ]);
        assert_eq!(flag(&container(args, &env), name).as_deref(), value);
    }

    /// Twelve variables, each of which names the one before it ten times.
    fn bomb(first: &str) -> Value {
        let mut env = vec![json!({"name": "V0", "value": first})];
        for at in 1..12 {
            let value = format!("$(V{})", at - 1).repeat(10);
            env.push(json!({"name": format!("V{at}"), "value": value}));
        }
        Value::from(env)
    }

    // Also values without a byte take time.
    #[rstest]
    #[case::bytes("xxxxxxxxxx")]
    #[case::nothing("")]
    fn variables_that_grow_stay_as_they_are(#[case] first: &str) {
        let env = bomb(first);
        let container = container(&["--a=$(V2)", "--b=$(V11)"], &env);
        assert_eq!(flag(&container, "a"), Some(first.repeat(100)));
        let value = flag(&container, "b").unwrap();
        assert!(value.len() <= MOST_READ, "{} bytes", value.len());
        assert_eq!(value, "$(V11)");
    }

    #[test]
    fn a_long_text_stays_as_it_is() {
        let argument = format!("--a={}$(V0)", "$(".repeat(MOST_READ));
        let container = container(&[&argument], &bomb("x"));
        assert_eq!(
            flag(&container, "a").as_deref(),
            argument.strip_prefix("--a=")
        );
    }
}
