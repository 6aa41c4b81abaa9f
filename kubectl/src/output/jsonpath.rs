//! `-o jsonpath=TEMPLATE`: the part of kubectl's templates that people type.
//!
//! Text stands as it is. In braces are paths (`{.volumes[*].claim}`), quoted text (`{"\n"}`), and
//! loops (`{range .volumes[*]}…{end}`). A path has fields (`.a`, `['a']`), elements (`[0]`, `[-1]`,
//! `[1:3]`, `[*]`) and filters (`[?(@.a=="b")]`). Anything else is refused when it is parsed. A
//! field that is missing prints nothing, as with kubectl.

use serde_json::Value;

mod parse;

pub(crate) use parse::Error;
use parse::Parser;

/// A template.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JsonPath(Vec<Piece>);

#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Text(String),
    Path(Path),
    /// What stands between `{range PATH}` and `{end}`, for each value of the path.
    Range(Path, Vec<Piece>),
}

#[derive(Clone, Debug, PartialEq)]
struct Path {
    /// True if it begins at the whole document also within a loop: with `$`.
    is_absolute: bool,
    steps: Vec<PathStep>,
}

#[derive(Clone, Debug, PartialEq)]
enum PathStep {
    Field(String),
    /// From the end if it is negative.
    Element(i64),
    /// From the first to before the second.
    Elements(Option<i64>, Option<i64>),
    All,
    Filter(Filter),
}

/// Chooses elements by a comparison.
#[derive(Clone, Debug, PartialEq)]
struct Filter {
    left: Path,
    /// Without one, the left side has to exist.
    comparison: Option<(Comparison, Value)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl JsonPath {
    pub(crate) fn parse(text: &str) -> Result<JsonPath, Error> {
        Parser::new(text).template().map(JsonPath)
    }

    /// The text for a document.
    pub(crate) fn evaluate(&self, document: &Value) -> String {
        let mut out = String::new();
        write(&self.0, document, document, &mut out);
        out
    }
}

fn write(pieces: &[Piece], root: &Value, current: &Value, out: &mut String) {
    for piece in pieces {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Path(path) => {
                let values = path.values(root, current);
                let texts: Vec<String> = values.into_iter().map(text).collect();
                out.push_str(&texts.join(" "));
            }
            Piece::Range(path, inner) => {
                for value in path.values(root, current) {
                    write(inner, root, value, out);
                }
            }
        }
    }
}

/// A value as kubectl prints it: texts without quotes, lists and objects as JSON.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

impl Path {
    fn values<'v>(&self, root: &'v Value, current: &'v Value) -> Vec<&'v Value> {
        let start = if self.is_absolute { root } else { current };
        self.steps.iter().fold(vec![start], |values, step| {
            values
                .into_iter()
                .flat_map(|value| step.values(root, value))
                .collect()
        })
    }
}

impl PathStep {
    fn values<'v>(&self, root: &'v Value, value: &'v Value) -> Vec<&'v Value> {
        match (self, value) {
            (PathStep::Field(name), Value::Object(fields)) => {
                fields.get(name).into_iter().collect()
            }
            (PathStep::All, Value::Object(fields)) => fields.values().collect(),
            (PathStep::All, Value::Array(all)) => all.iter().collect(),
            (PathStep::Element(at), Value::Array(all)) => {
                // An element before the first does not exist.
                let at = if *at < 0 { at + length(all) } else { *at };
                let at = usize::try_from(at).ok();
                at.and_then(|at| all.get(at)).into_iter().collect()
            }
            (PathStep::Elements(from, to), Value::Array(all)) => {
                let from = bound(from.unwrap_or(0), all);
                let to = bound(to.unwrap_or(i64::MAX), all);
                all.get(from..to).into_iter().flatten().collect()
            }
            (PathStep::Filter(filter), Value::Array(all)) => {
                let chosen = all.iter().filter(|one| filter.chooses(root, one));
                chosen.collect()
            }
            _ => Vec::new(),
        }
    }
}

fn length(all: &[Value]) -> i64 {
    i64::try_from(all.len()).unwrap_or(i64::MAX)
}

/// A bound of a slice, within the list.
fn bound(at: i64, all: &[Value]) -> usize {
    let length = length(all);
    let at = if at < 0 { at + length } else { at };
    usize::try_from(at.clamp(0, length)).unwrap_or(0)
}

impl Filter {
    fn chooses(&self, root: &Value, element: &Value) -> bool {
        let found = self.left.values(root, element);
        match &self.comparison {
            None => !found.is_empty(),
            Some((comparison, right)) => found.iter().any(|left| comparison.holds(left, right)),
        }
    }
}

impl Comparison {
    /// Numbers compare with numbers, texts with texts. Values of two kinds are unequal.
    fn holds(self, left: &Value, right: &Value) -> bool {
        let order = match (left, right) {
            (Value::Number(left), Value::Number(right)) => {
                left.as_f64().partial_cmp(&right.as_f64())
            }
            (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
            (Value::Bool(left), Value::Bool(right)) => Some(left.cmp(right)),
            (Value::Null, Value::Null) => Some(std::cmp::Ordering::Equal),
            _ => None,
        };
        match self {
            Comparison::Equal => order.is_some_and(std::cmp::Ordering::is_eq),
            Comparison::Unequal => order.is_none_or(std::cmp::Ordering::is_ne),
            Comparison::Less => order.is_some_and(std::cmp::Ordering::is_lt),
            Comparison::LessOrEqual => order.is_some_and(std::cmp::Ordering::is_le),
            Comparison::Greater => order.is_some_and(std::cmp::Ordering::is_gt),
            Comparison::GreaterOrEqual => order.is_some_and(std::cmp::Ordering::is_ge),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn document() -> Value {
        json!({
            "kind": "List",
            "items": [
                {"name": "a", "state": "stuck", "size": 1, "labels": {"app.kubernetes.io/name": "x"}},
                {"name": "b", "state": "bound", "size": 20, "ready": true, "node": null},
                {"name": "c", "state": "stuck", "size": 3, "pods": ["p", "q"]},
            ],
        })
    }

    #[rstest]
    #[case::text("no braces", "no braces")]
    #[case::field("{.kind}", "List")]
    #[case::root("{$.kind} {@.kind}", "List List")]
    #[case::whole("{.items[2].pods}{range .items[2].pods[*]}{.}{end}", "[\"p\",\"q\"]pq")]
    #[case::field_in_brackets("{['kind']}{[\"kind\"]}", "ListList")]
    #[case::field_with_dots("{.items[0].labels['app.kubernetes.io/name']}", "x")]
    #[case::field_with_escaped_dots("{.items[0].labels.app\\.kubernetes\\.io/name}", "x")]
    #[case::all("{.items[*].name}", "a b c")]
    #[case::all_fields("{.items[2].pods.*}", "p q")]
    #[case::element("{.items[1].name}", "b")]
    #[case::last("{.items[-1].name}", "c")]
    #[case::slice("{.items[0:2].name}", "a b")]
    #[case::open_slice("{.items[1:].name}|{.items[:-1].name}", "b c|a b")]
    #[case::no_element("{.items[9].name}{.items[-9].name}{.items[5:2].name}", "")]
    #[case::missing("[{.items[*].no}]", "[]")]
    #[case::null("[{.items[1].node}]", "[]")]
    #[case::values(
        "{.items[1].size} {.items[1].ready} {.items[2].pods}",
        "20 true [\"p\",\"q\"]"
    )]
    #[case::quoted("{\"a\\tb\\n\"}{'it''s'}", "a\tb\nits")]
    #[case::several_in_braces("{.kind \"\\t\" .items[0].name}", "List\ta")]
    #[case::range("{range .items[*]}{.name}={.size}{\"\\n\"}{end}", "a=1\nb=20\nc=3\n")]
    #[case::nested(
        "{range .items[2:]}{range .pods[*]}<{@}>{end}{$.kind}{end}",
        "<p><q>List"
    )]
    #[case::equal("{.items[?(@.state==\"stuck\")].name}", "a c")]
    #[case::single_quotes("{.items[?(@.state == 'bound')].name}", "b")]
    #[case::unequal("{.items[?(@.state!='stuck')].name}", "b")]
    #[case::greater("{.items[?(@.size>2)].name}", "b c")]
    #[case::at_most("{.items[?(@.size<=3)].name}", "a c")]
    #[case::boolean("{.items[?(@.ready==true)].name}", "b")]
    #[case::exists("{.items[?(@.pods)].name}", "c")]
    fn evaluated(#[case] template: &str, #[case] text: &str) {
        let template = JsonPath::parse(template).unwrap();
        assert_eq!(template.evaluate(&document()), text);
    }

    #[rstest]
    #[case::open("{.a", "a brace is not closed")]
    #[case::closed("a}", "a brace is closed that was not opened")]
    #[case::no_end("{range .a[*]}{.b}", "{range} has no {end}")]
    #[case::no_range("{.a}{end}", "{end} has no {range}")]
    #[case::deep("{..name}", "\"..name}\" is not understood")]
    #[case::union("{.a[0,1]}", "\",1]}\" is not understood")]
    #[case::function("{length(.a)}", "\"length(.a)}\" is not understood")]
    #[case::quote("{\"a}", "a quote is not closed")]
    #[case::filter("{.a[?(@.b=~'c')]}", "\"=~'c')]}\" is not understood")]
    #[case::and("{.a[?(@.b==1&&@.c==2)]}", "\"&&@.c==2)]}\" is not understood")]
    #[case::number("{.a[99999999999999999999]}", "is not understood")]
    fn refused(#[case] template: &str, #[case] why: &str) {
        let error = JsonPath::parse(template).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
