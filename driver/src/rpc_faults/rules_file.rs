//! Reads a file of rules. It refuses what it does not know, and names the field and the reason.

use std::sync::Arc;
use std::time::Duration;

use hostloop_controllers::api::duration;
use hostloop_proto::calls::{code_name, spec_name};
use serde_json::{Map, Value};
use tonic::Code;

use super::csi_calls::is_known;
use super::fault::Outcome;
use super::rule::{Pattern, Rule};

#[cfg(test)]
mod tests;

/// The most rules of a file.
pub const MAX_RULES: usize = 100;
/// The longest delay. Sidecars and kubelet give up earlier.
pub const MAX_DELAY: Duration = Duration::from_secs(600);
/// The longest lifetime of a rule.
const MAX_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// The most calls that a rule counts to.
const MAX_TIMES: u64 = 1_000_000;
/// The longest pattern, in bytes.
const MAX_PATTERN: usize = 256;
/// The longest name, in bytes.
const MAX_NAME: usize = 63;
/// The longest message, in bytes: a header of an answer has it.
const MAX_MESSAGE: usize = 1024;

const TOP: [&str; 2] = ["seed", "rules"];
const RULE: [&str; 14] = [
    "name",
    "method",
    "object",
    "claim",
    "namespace",
    "node",
    "times",
    "probability",
    "for",
    "delayBefore",
    "delayAfter",
    "code",
    "message",
    "answer",
];

/// The content of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleSet {
    /// Where the draws of all probabilities begin.
    pub seed: u64,
    pub rules: Vec<Rule>,
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    #[error("it is not YAML: {0}")]
    Yaml(String),
    #[error("{field}: {why}")]
    Field {
        /// The path of the field, such as `rules[2].code`.
        field: String,
        why: String,
    },
}

/// Reads the text of a file. A file without content has no rules.
pub fn read(text: &str) -> Result<RuleSet, RulesError> {
    if text.lines().all(is_blank) {
        return Ok(RuleSet::default());
    }
    let value: Value = serde_saphyr::from_str(text)
        .map_err(|error| RulesError::Yaml(error.without_snippet().to_string()))?;
    let top = Mapping::of(String::new(), &value, &TOP)?;
    let seed = top.number("seed", 0, u64::MAX)?.unwrap_or(0);
    let listed: &[Value] = match top.get("rules") {
        None => &[],
        Some(Value::Array(listed)) if listed.len() <= MAX_RULES => listed.as_slice(),
        Some(Value::Array(listed)) => {
            let why = format!("has {} rules, and may have {MAX_RULES}", listed.len());
            return Err(top.error("rules", why));
        }
        Some(_) => return Err(top.error("rules", "is not a list")),
    };
    let mut rules = Vec::new();
    for (number, value) in listed.iter().enumerate() {
        let mapping = Mapping::of(format!("rules[{number}]"), value, &RULE)?;
        let rule = rule(&mapping, number)?;
        if rules.iter().any(|other: &Rule| other.name == rule.name) {
            let why = format!("{:?} is the name of an earlier rule", rule.name);
            return Err(mapping.error("name", why));
        }
        rules.push(rule);
    }
    Ok(RuleSet { seed, rules })
}

/// True for a line without content.
fn is_blank(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#') || line == "---"
}

fn rule(mapping: &Mapping<'_>, number: usize) -> Result<Rule, RulesError> {
    let name: Arc<str> = match mapping.text("name", MAX_NAME)? {
        Some(name) => name.into(),
        None => format!("rule-{}", number + 1).into(),
    };
    let rule = Rule {
        methods: methods(mapping)?,
        object: pattern(mapping, "object")?,
        claim: pattern(mapping, "claim")?,
        namespace: pattern(mapping, "namespace")?,
        node: pattern(mapping, "node")?,
        times: mapping.number("times", 1, MAX_TIMES)?,
        probability: probability(mapping)?,
        lifetime: mapping.duration("for", MAX_LIFETIME)?,
        delay_before: mapping
            .duration("delayBefore", MAX_DELAY)?
            .unwrap_or_default(),
        delay_after: mapping
            .duration("delayAfter", MAX_DELAY)?
            .unwrap_or_default(),
        outcome: outcome(mapping, &name)?,
        name,
    };
    let refuses = matches!(rule.outcome, Outcome::Refused { .. });
    if refuses && !rule.delay_after.is_zero() {
        let why = "a refused call is not done, so nothing comes after it: set delayBefore";
        return Err(mapping.error("delayAfter", why));
    }
    let delays = rule.delay_before + rule.delay_after;
    if rule.outcome == Outcome::Answered && delays.is_zero() {
        let why = "does nothing: set code, answer, delayBefore or delayAfter";
        return Err(mapping.whole(why));
    }
    Ok(rule)
}

/// The calls of a rule: one, or a list.
fn methods(mapping: &Mapping<'_>) -> Result<Vec<Pattern>, RulesError> {
    let listed = match mapping.get("method") {
        Some(Value::Array(listed)) => listed.as_slice(),
        Some(one) => std::slice::from_ref(one),
        None => return Err(mapping.error("method", "is missing: \"*\" means all calls")),
    };
    if listed.is_empty() {
        return Err(mapping.error("method", "has no call: \"*\" means all calls"));
    }
    let methods = listed.iter();
    methods.map(|value| method(mapping, value)).collect()
}

fn method(mapping: &Mapping<'_>, value: &Value) -> Result<Pattern, RulesError> {
    let text = mapping.as_text("method", value, MAX_PATTERN)?;
    if is_known(text) || text.contains(['/', '*']) {
        return pattern_of(mapping, "method", text.trim_start_matches('/'));
    }
    let why = format!(
        "{text:?} is not a call of CSI: calls are like CreateVolume, Node* or, of other services, \
         example.v1.Service/Call"
    );
    Err(mapping.error("method", why))
}

fn pattern(mapping: &Mapping<'_>, name: &str) -> Result<Option<Pattern>, RulesError> {
    let text = mapping.text(name, MAX_PATTERN)?;
    text.map(|text| pattern_of(mapping, name, text)).transpose()
}

/// The pattern of a text. It would match nothing with a `*` before its end.
fn pattern_of(mapping: &Mapping<'_>, name: &str, text: &str) -> Result<Pattern, RulesError> {
    if text.strip_suffix('*').unwrap_or(text).contains('*') {
        let why = "has a * before its end: only a final one stands for any rest";
        return Err(mapping.error(name, why));
    }
    Ok(Pattern::new(text))
}

fn probability(mapping: &Mapping<'_>) -> Result<Option<f64>, RulesError> {
    let Some(value) = mapping.get("probability") else {
        return Ok(None);
    };
    match value.as_f64() {
        Some(share) if share > 0.0 && share <= 1.0 => Ok(Some(share)),
        _ => Err(mapping.error("probability", "is not a number above 0 and up to 1")),
    }
}

/// What happens to the calls of a rule, by its code, message and answer.
fn outcome(mapping: &Mapping<'_>, rule: &str) -> Result<Outcome, RulesError> {
    let code = mapping
        .text("code", MAX_PATTERN)?
        .map(|word| code(mapping, word))
        .transpose()?;
    let message = mapping.text("message", MAX_MESSAGE)?.map(str::to_owned);
    match (mapping.text("answer", MAX_PATTERN)?, code) {
        (None, Some(code)) => Ok(Outcome::Refused {
            code,
            message: message.unwrap_or_else(|| default_message(rule, "the call is refused")),
        }),
        (None, None) if message.is_some() => {
            Err(mapping.error("message", "needs a code, or answer: lost"))
        }
        (None, None) => Ok(Outcome::Answered),
        (Some("lost"), code) => Ok(Outcome::Lost {
            code: code.unwrap_or(Code::Unavailable),
            message: message.unwrap_or_else(|| {
                default_message(rule, "the call is done, and its answer is lost")
            }),
        }),
        (Some("never"), None) if message.is_none() => Ok(Outcome::Unanswered),
        (Some("never"), _) => {
            let why = "never means no answer at all, so there is no code and no message";
            Err(mapping.error("answer", why))
        }
        (Some(word), _) => {
            let why = format!("{word:?} is neither \"lost\" nor \"never\"");
            Err(mapping.error("answer", why))
        }
    }
}

/// The message of a rule that has none.
fn default_message(rule: &str, what: &str) -> String {
    format!("fault rule {rule:?}: {what}")
}

/// The code of this name, in the form of the specification or of Go.
fn code(mapping: &Mapping<'_>, word: &str) -> Result<Code, RulesError> {
    let mut codes = (1..=16).map(Code::from_i32);
    let found = codes.find(|code| word == spec_name(*code) || word == code_name(*code));
    found.ok_or_else(|| {
        let why = format!("{word:?} is not the gRPC code of an error, such as UNAVAILABLE");
        mapping.error("code", why)
    })
}

/// A mapping of the file.
struct Mapping<'v> {
    /// The path of the mapping; empty at the top.
    at: String,
    fields: &'v Map<String, Value>,
}

impl<'v> Mapping<'v> {
    /// A mapping that has no other fields than these.
    fn of(at: String, value: &'v Value, known: &[&str]) -> Result<Mapping<'v>, RulesError> {
        let Value::Object(fields) = value else {
            let field = if at.is_empty() {
                "the file"
            } else {
                at.as_str()
            };
            return Err(RulesError::Field {
                field: field.to_owned(),
                why: format!("is not a mapping with {}", known.join(", ")),
            });
        };
        let mapping = Mapping { at, fields };
        let unknown = mapping
            .fields
            .keys()
            .find(|key| !known.contains(&key.as_str()));
        match unknown {
            Some(key) => {
                let why = format!("is unknown; known are {}", known.join(", "));
                Err(mapping.error(key, why))
            }
            None => Ok(mapping),
        }
    }

    fn get(&self, name: &str) -> Option<&'v Value> {
        self.fields.get(name)
    }

    fn error(&self, name: &str, why: impl Into<String>) -> RulesError {
        let field = match self.at.as_str() {
            "" => name.to_owned(),
            at => format!("{at}.{name}"),
        };
        let why = why.into();
        RulesError::Field { field, why }
    }

    /// An error of the mapping itself.
    fn whole(&self, why: &str) -> RulesError {
        RulesError::Field {
            field: self.at.clone(),
            why: why.to_owned(),
        }
    }

    fn text(&self, name: &str, longest: usize) -> Result<Option<&'v str>, RulesError> {
        self.get(name)
            .map(|value| self.as_text(name, value, longest))
            .transpose()
    }

    fn as_text(&self, name: &str, value: &'v Value, longest: usize) -> Result<&'v str, RulesError> {
        let why = match value.as_str() {
            Some("") => "is empty".to_owned(),
            Some(text) if text.len() > longest => format!("has more than {longest} bytes"),
            Some(text) if text.contains(char::is_control) => {
                "has a character that is not printed".to_owned()
            }
            Some(text) => return Ok(text),
            None => "is not text: put it in quotes".to_owned(),
        };
        Err(self.error(name, why))
    }

    fn number(&self, name: &str, least: u64, most: u64) -> Result<Option<u64>, RulesError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        match value.as_u64() {
            Some(number) if (least..=most).contains(&number) => Ok(Some(number)),
            _ => Err(self.error(name, format!("is not a number from {least} to {most}"))),
        }
    }

    fn duration(&self, name: &str, longest: Duration) -> Result<Option<Duration>, RulesError> {
        let Some(text) = self.text(name, MAX_PATTERN)? else {
            return Ok(None);
        };
        match duration::parse(text) {
            Ok(time) if time.is_zero() => Err(self.error(name, "is not a time: leave it out")),
            Ok(time) if time <= longest => Ok(Some(time)),
            Ok(_) => Err(self.error(name, format!("is longer than {longest:?}"))),
            Err(why) => Err(self.error(name, why)),
        }
    }
}
