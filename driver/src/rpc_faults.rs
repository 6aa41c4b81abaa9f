//! Faults of RPCs by rules: refusals, delays and lost answers, for this driver and for any driver
//! behind the proxy.
//!
//! `rules_file` reads rules, [`ActiveRules`] decides about each call, and a [`Fault`] is what
//! happens to a call. [`FaultInjector`] follows the file.

mod active_rules;
mod call_subject;
mod csi_calls;
mod fault;
mod injector;
mod rule;
mod rules_file;

pub use active_rules::ActiveRules;
pub use call_subject::{CallSubject, FaultSubject};
pub(crate) use csi_calls::{each_csi_call, short_name};
pub use fault::{Fault, Outcome, around};
pub use injector::{FaultCount, FaultInjector, FaultRulesError};
pub use rule::{Pattern, Rule};
pub use rules_file::{MAX_DELAY, MAX_RULES, RuleSet, RulesError, read};
