//! The rules in force, with what they have done so far.

use std::time::Instant;

use super::call_subject::CallSubject;
use super::rule::Rule;
use super::rules_file::RuleSet;

#[cfg(test)]
mod tests;

/// The rules in force.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ActiveRules(Vec<ActiveRule>);

#[derive(Clone, Debug, PartialEq)]
struct ActiveRule {
    rule: Rule,
    /// The seed of its own draws.
    seed: u64,
    since: Instant,
    /// How often it has drawn.
    draws: u64,
    /// How many calls it has taken.
    taken: u64,
}

impl ActiveRules {
    /// Replaces the rules by those of a file. A rule that stays as it is goes on counting.
    pub fn replace(&mut self, set: RuleSet, now: Instant) {
        let mut before = std::mem::take(&mut self.0);
        for rule in set.rules {
            let seed = seed_of(set.seed, &rule.name);
            let known = before
                .iter()
                .position(|active| active.rule == rule && active.seed == seed);
            let active = match known {
                Some(place) => before.swap_remove(place),
                None => ActiveRule {
                    rule,
                    seed,
                    since: now,
                    draws: 0,
                    taken: 0,
                },
            };
            self.0.push(active);
        }
    }

    /// The number of rules.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True without rules.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The rule of a call: the first one that takes it.
    pub fn decide(
        &mut self,
        path: &str,
        subject: &CallSubject<'_>,
        own_node: &str,
        now: Instant,
    ) -> Option<&Rule> {
        let taking = self.0.iter_mut().find_map(|active| {
            let takes = active.takes(path, subject, own_node, now);
            takes.then_some(active)
        });
        taking.map(|active| &active.rule)
    }
}

impl ActiveRule {
    /// True if the rule takes this call, which then counts.
    fn takes(
        &mut self,
        path: &str,
        subject: &CallSubject<'_>,
        own_node: &str,
        now: Instant,
    ) -> bool {
        let is_over = self.rule.times.is_some_and(|times| self.taken >= times)
            || self
                .rule
                .lifetime
                .is_some_and(|lifetime| now.duration_since(self.since) >= lifetime);
        if is_over || !self.rule.is_for(path, subject, own_node) {
            return false;
        }
        if let Some(probability) = self.rule.probability {
            self.draws += 1;
            if draw(self.seed, self.draws) >= probability {
                return false;
            }
        }
        self.taken += 1;
        true
    }
}

/// The seed of a rule. It depends on no other rule, so adding one changes the draws of none.
fn seed_of(seed: u64, name: &str) -> u64 {
    // FNV-1a.
    let start = seed ^ 0xcbf2_9ce4_8422_2325;
    name.bytes().fold(start, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The draw of this number: at least 0 and less than 1. It is the same in each run.
fn draw(seed: u64, number: u64) -> f64 {
    // SplitMix64.
    let mut bits = seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}
