//! Waits for what controllers do at their own pace.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::Front;
use super::objects::{Objects, Place};
use crate::PATIENCE;

/// Calls `ask` repeatedly until it returns an answer or the time is up.
pub async fn until<T, F>(limit: Duration, ask: impl Fn() -> F) -> Option<T>
where
    F: Future<Output = Option<T>>,
{
    let deadline = Instant::now() + limit;
    loop {
        if let Some(answer) = ask().await {
            return Some(answer);
        }
        if Instant::now() > deadline {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

impl Objects {
    /// Waits until an object satisfies `is`, and returns it.
    pub async fn until(
        &self,
        at: &Place,
        limit: Duration,
        is: impl Fn(&Value) -> bool,
    ) -> Option<Value> {
        until(limit, || async {
            self.get(at).await.filter(|object| is(object))
        })
        .await
    }

    /// Waits until an object is gone. Returns false if it is still there.
    pub async fn until_gone(&self, at: &Place, limit: Duration) -> bool {
        let gone = || async { self.get(at).await.is_none().then_some(()) };
        until(limit, gone).await.is_some()
    }

    /// An object and its events, for the message of a failed test.
    pub async fn describe(&self, at: &Place) -> String {
        let mut object = self.get(at).await.unwrap_or_default();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
        }
        format!("{object:#}\nevents {:#?}", self.events(at).await)
    }
}

impl Front {
    /// Waits until an object satisfies `is`, and returns it. On a timeout the test fails with the
    /// object, its events and the end of the log.
    pub async fn until(&self, at: &Place, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let ask = || async {
            self.pod.assert_running();
            self.objects.get(at).await.filter(|object| is(object))
        };
        match until(PATIENCE, ask).await {
            Some(object) => object,
            None => self.fail(at, what).await,
        }
    }

    /// Waits until an object is gone.
    pub async fn until_gone(&self, at: &Place) {
        if !self.objects.until_gone(at, PATIENCE).await {
            self.fail(at, "gone").await
        }
    }

    /// Waits for an event about an object with all of these words in its message. Returns the
    /// message.
    pub async fn until_event(
        &self,
        at: &Place,
        kind: &str,
        reason: &str,
        words: &[&str],
    ) -> String {
        let ask = || async {
            self.pod.assert_running();
            let events = self.objects.events(at).await.into_iter();
            let mut messages = events.filter(|e| e.0 == kind && e.1 == reason).map(|e| e.2);
            messages.find(|m| words.iter().all(|word| m.contains(word)))
        };
        let what = format!("event {kind} {reason} about {words:?}");
        match until(PATIENCE, ask).await {
            Some(message) => message,
            None => self.fail(at, &what).await,
        }
    }

    /// Waits until the driver has received this number of calls.
    pub async fn until_called(&self, method: &str, times: usize) {
        let ask = || async { (self.driver.count(method) >= times).then_some(()) };
        if until(PATIENCE, ask).await.is_none() {
            let counts = self.driver.counts();
            let tail = self.pod.tail();
            panic!(
                "{}: {method} was not called {times} times: {counts:?}\n{tail}",
                self.name
            );
        }
    }

    /// Waits until a condition about the driver is true.
    pub async fn until_so(&self, what: &str, so: impl Fn() -> bool) {
        let ask = || async { so().then_some(()) };
        if until(PATIENCE, ask).await.is_none() {
            let (left, counts) = (self.driver.left(), self.driver.counts());
            let tail = self.pod.tail();
            panic!("{}: not {what}: {left:?} {counts:?}\n{tail}", self.name);
        }
    }

    async fn fail(&self, at: &Place, what: &str) -> ! {
        let object = self.objects.describe(at).await;
        let (calls, tail) = (self.driver.counts(), self.pod.tail());
        panic!(
            "{}: {at} is not {what} after {PATIENCE:?}:\n{object}\ncalls {calls:?}\n\
             the end of the log:\n{tail}",
            self.name
        );
    }
}
