//! Answers that come later: no thread sleeps for one of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// Answers in the order of their times.
#[derive(Debug)]
pub(crate) struct AnswerQueue<A> {
    waiting: Mutex<Waiting<A>>,
    changed: Condvar,
}

#[derive(Debug)]
struct Waiting<A> {
    answers: BinaryHeap<Reverse<Later<A>>>,
    /// How many have come. Of two with one time, the first one goes first.
    number: u64,
    is_closed: bool,
}

#[derive(Debug)]
struct Later<A> {
    due: Instant,
    number: u64,
    answer: A,
}

impl<A> AnswerQueue<A> {
    /// A queue that has the memory for so many.
    pub(crate) fn new(capacity: usize) -> AnswerQueue<A> {
        AnswerQueue {
            waiting: Mutex::new(Waiting {
                answers: BinaryHeap::with_capacity(capacity),
                number: 0,
                is_closed: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// How much memory so many take.
    pub(crate) fn cost(capacity: usize) -> usize {
        capacity * size_of::<Later<A>>()
    }

    pub(crate) fn push(&self, due: Instant, answer: A) {
        let mut waiting = self.waiting.lock();
        waiting.number += 1;
        let number = waiting.number;
        waiting.answers.push(Reverse(Later {
            due,
            number,
            answer,
        }));
        drop(waiting);
        self.changed.notify_one();
    }

    /// Waits until an answer is due. `None` once the queue is closed and empty. A closed queue has
    /// its answers at once.
    pub(crate) fn next(&self) -> Option<A> {
        let mut waiting = self.waiting.lock();
        loop {
            let due = waiting.answers.peek().map(|later| later.0.due);
            match due {
                Some(due) if waiting.is_closed || due <= Instant::now() => {
                    return waiting.answers.pop().map(|later| later.0.answer);
                }
                Some(due) => {
                    self.changed.wait_until(&mut waiting, due);
                }
                None if waiting.is_closed => return None,
                None => self.changed.wait(&mut waiting),
            }
        }
    }

    pub(crate) fn close(&self) {
        self.waiting.lock().is_closed = true;
        self.changed.notify_all();
    }
}

impl<A> PartialEq for Later<A> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<A> Eq for Later<A> {}

impl<A> PartialOrd for Later<A> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<A> Ord for Later<A> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn answers_come_in_the_order_of_their_times() {
        let queue = AnswerQueue::new(4);
        let now = Instant::now();
        let after = |ms| now + Duration::from_millis(ms);
        queue.push(after(60), "third");
        queue.push(after(20), "first");
        queue.push(after(20), "second");
        for (expected, ms) in [("first", 20), ("second", 20), ("third", 60)] {
            assert_eq!(queue.next(), Some(expected));
            assert!(Instant::now() >= after(ms), "{expected} came early");
        }
        queue.push(after(3_600_000), "at the end");
        queue.close();
        assert_eq!(queue.next(), Some("at the end"));
        assert_eq!(queue.next(), None);
    }
}
