//! Items that wait while their namespaces take turns.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The number of rounds that a namespace without items may save up. So a namespace with little work
/// waits for no other one at any step of that work.
const SAVED: u64 = 8;

/// Items that wait, by namespace. In each round, each namespace has one turn, which takes its first
/// item. A namespace that had fewer turns than there were rounds has the next ones, up to [`SAVED`].
/// So an item waits for the earlier ones of its own namespace, and for few of each other one.
#[derive(Debug)]
pub struct Turns<T> {
    /// The namespaces with items, the next one first: by their round, and then by their arrival.
    order: BTreeMap<Turn, Arc<str>>,
    /// The items of these namespaces.
    lines: HashMap<Arc<str>, NamespaceLine<T>>,
    /// The next rounds of namespaces without items that have not saved up all they may.
    rounds: HashMap<Arc<str>, u64>,
    /// The round of the last turn.
    round: u64,
    /// The number of the last arrival.
    arrival: u64,
    len: usize,
}

/// The round of a namespace's next turn, and the number of its arrival there.
type Turn = (u64, u64);

/// The items of a namespace, by number.
#[derive(Debug)]
struct NamespaceLine<T> {
    turn: Turn,
    items: BTreeMap<u64, T>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Turns {
            order: BTreeMap::new(),
            lines: HashMap::new(),
            rounds: HashMap::new(),
            round: 0,
            arrival: 0,
            len: 0,
        }
    }
}

/// The earliest round in which a namespace may have a turn during this one.
fn earliest(round: u64) -> u64 {
    round.saturating_sub(SAVED)
}

impl<T> Turns<T> {
    /// Adds an item. Its number must be unique within its namespace, which takes its items in the
    /// order of their numbers.
    pub fn add(&mut self, namespace: &str, number: u64, item: T) {
        self.len += 1;
        if let Some(line) = self.lines.get_mut(namespace) {
            line.items.insert(number, item);
            return;
        }
        let namespace: Arc<str> = namespace.into();
        let next = self.rounds.remove(&namespace).unwrap_or(0);
        let turn = self.arrive(namespace.clone(), next);
        self.lines.insert(
            namespace,
            NamespaceLine {
                turn,
                items: BTreeMap::from([(number, item)]),
            },
        );
    }

    /// Gives a namespace its next turn, in this round at the earliest.
    fn arrive(&mut self, namespace: Arc<str>, round: u64) -> Turn {
        self.arrival += 1;
        let turn = (round.max(earliest(self.round)), self.arrival);
        self.order.insert(turn, namespace);
        turn
    }

    /// Takes the first item of the next namespace for which `may` returns true; it gets the namespace
    /// and the item's number. The others keep their turns.
    pub fn take_if(&mut self, may: impl Fn(&str, u64) -> bool) -> Option<T> {
        let namespace = self
            .order
            .values()
            .find(|namespace| {
                let first = self.lines[*namespace].items.first_key_value();
                first.is_some_and(|(number, _)| may(namespace, *number))
            })?
            .clone();
        let line = self.lines.get_mut(&namespace)?;
        let (_, item) = line.items.pop_first()?;
        let (is_empty, turn) = (line.items.is_empty(), line.turn);
        self.len -= 1;
        self.order.remove(&turn);
        self.begin_round(turn.0);
        let next = turn.0.max(earliest(self.round)) + 1;
        if is_empty {
            self.leave(&namespace, next);
        } else {
            let turn = self.arrive(namespace.clone(), next);
            if let Some(line) = self.lines.get_mut(&namespace) {
                line.turn = turn;
            }
        }
        Some(item)
    }

    /// Begins a round, unless it has begun, and forgets those that have saved up all they may.
    fn begin_round(&mut self, round: u64) {
        if round > self.round {
            self.round = round;
            self.rounds.retain(|_, next| *next > earliest(round));
        }
    }

    /// Removes a namespace without items. Its next round is kept while it matters.
    fn leave(&mut self, namespace: &Arc<str>, next: u64) {
        self.lines.remove(namespace);
        if next > earliest(self.round) {
            self.rounds.insert(namespace.clone(), next);
        }
        if self.len == 0 {
            // No item waits, so no namespace has precedence over another one.
            self.rounds.clear();
            self.round = 0;
        }
    }

    /// Removes an item out of turn.
    pub fn remove(&mut self, namespace: &str, number: u64) -> Option<T> {
        let line = self.lines.get_mut(namespace)?;
        let item = line.items.remove(&number)?;
        let (is_empty, turn) = (line.items.is_empty(), line.turn);
        self.len -= 1;
        if is_empty && let Some(namespace) = self.order.remove(&turn) {
            self.leave(&namespace, turn.0);
        }
        Some(item)
    }

    /// Makes room for an item of this namespace: removes the last item of the namespace with the
    /// most. `None` if that would leave it fewer than this namespace then has, so the new item is
    /// the one to lose.
    pub(crate) fn give_way(&mut self, namespace: &str) -> Option<T> {
        let own = self.lines.get(namespace).map_or(0, |line| line.items.len());
        let (most, line) = self.lines.iter().max_by_key(|(_, line)| line.items.len())?;
        let (last, _) = line
            .items
            .last_key_value()
            .filter(|_| line.items.len() > own + 1)?;
        let (most, last) = (most.clone(), *last);
        self.remove(&most, last)
    }

    /// All items, by number.
    #[cfg(test)]
    pub(crate) fn in_order(self) -> Vec<T> {
        let lines = self.lines.into_values();
        let items: BTreeMap<u64, T> = lines.flat_map(|line| line.items).collect();
        items.into_values().collect()
    }

    /// The number of items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without any item.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<T> Iterator for Turns<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.take_if(|_, _| true)
    }
}

#[cfg(test)]
mod tests;
