//! The store of an API server that goes back to a backup.

use hostloop_fake_api::{Backup, Fault};

use super::*;

/// How long a watch takes.
const WATCH: Duration = Duration::from_secs(290);

fn volume(name: &str, phase: &str) -> serde_json::Value {
    json!({"kind": "PersistentVolume", "apiVersion": "v1", "metadata": {"name": name},
        "status": {"phase": phase}})
}

/// The known volumes, with their phases.
fn phases(watch: &Store<PersistentVolume>) -> Vec<(String, String)> {
    let all = watch.all().into_iter();
    all.map(|volume| {
        let phase = volume.status.as_ref().and_then(|known| known.phase.clone());
        (volume.name_any(), phase.unwrap_or_default())
    })
    .collect()
}

fn expect(phases: &[(&str, &str)]) -> Vec<(String, String)> {
    let all = phases.iter();
    all.map(|(name, phase)| ((*name).to_owned(), (*phase).to_owned()))
        .collect()
}

/// A store that has listed a volume and watches, and a future that stops it. The requests are read.
async fn watching(
    api: &crate::testing::FakeApi,
) -> (Store<PersistentVolume>, impl Future<Output = ()>) {
    api.put(volume("a", "Bound"));
    let (watch, ended) = running(api);
    watch.synced().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    api.requests();
    (watch, ended)
}

/// A backup of a server on which a volume is bound since then.
fn changed_since_backup(api: &crate::testing::FakeApi) -> Backup {
    api.put(volume("a", "Pending"));
    let backup = api.backup();
    api.put(volume("a", "Bound"));
    backup
}

/// What came after the backup is forgotten, what was deleted after it is back, and so is what had
/// changed. New changes are seen, although their versions have been there before.
#[tokio::test(start_paused = true)]
async fn a_store_goes_back_with_its_server() {
    let api = crate::testing::FakeApi::default();
    api.put(volume("changed", "Pending"));
    api.put(volume("deleted", "Pending"));
    let (watch, ended) = running(&api);
    watch.synced().await;
    let backup = api.backup();
    api.put(volume("changed", "Bound"));
    api.take("/persistentvolumes/deleted");
    for number in 0..20 {
        api.put(volume("later", &format!("Phase{number}")));
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = expect(&[("changed", "Bound"), ("later", "Phase19")]);
    assert_eq!(phases(&watch), before);

    api.restore(&backup);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let restored = expect(&[("changed", "Pending"), ("deleted", "Pending")]);
    assert_eq!(phases(&watch), restored);

    api.put(volume("changed", "Released"));
    tokio::time::sleep(Duration::from_secs(5)).await;
    let changed = expect(&[("changed", "Released"), ("deleted", "Pending")]);
    assert_eq!(phases(&watch), changed);
    ended.await;
}

/// The server ends a watch half a second before its time.
#[tokio::test(start_paused = true)]
async fn a_store_goes_back_at_the_end_of_a_watch() {
    let api = crate::testing::FakeApi::default();
    let backup = changed_since_backup(&api);
    let (watch, ended) = running(&api);
    watch.synced().await;
    assert_eq!(phases(&watch), expect(&[("a", "Bound")]));
    tokio::time::sleep(WATCH - Duration::from_millis(500)).await;
    api.restore(&backup);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(phases(&watch), expect(&[("a", "Pending")]));
    ended.await;
}

/// The server is restored between two watches. The next one is from a version that is still to come,
/// so it is silent to its end.
#[tokio::test(start_paused = true)]
async fn a_store_goes_back_after_a_silent_watch() {
    let api = crate::testing::FakeApi::default();
    let backup = changed_since_backup(&api);
    let (watch, ended) = running(&api);
    watch.synced().await;
    tokio::time::sleep(WATCH - Duration::from_secs(1)).await;
    let delay = Fault::Delay(Duration::from_secs(5));
    api.fault(&["GET"], "persistentvolumes", Some(1), delay);
    tokio::time::sleep(Duration::from_secs(3)).await;
    api.restore(&backup);
    tokio::time::sleep(WATCH).await;
    assert_eq!(phases(&watch), expect(&[("a", "Bound")]));
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(phases(&watch), expect(&[("a", "Pending")]));
    ended.await;
}

/// A watch that ends in its time leads to no question.
#[tokio::test(start_paused = true)]
async fn after_a_watch_the_next_one_follows() {
    let api = crate::testing::FakeApi::default();
    let (_watch, ended) = watching(&api).await;
    tokio::time::sleep(WATCH).await;
    let requests = api.requests();
    assert_eq!(requests.len(), 1, "{requests:?}");
    ended.await;
}

/// A server that comes back unchanged is asked for its version once, and nothing is listed again.
#[tokio::test(start_paused = true)]
async fn a_server_that_did_not_go_back_lists_nothing_again() {
    let api = crate::testing::FakeApi::default();
    let (_watch, ended) = watching(&api).await;
    api.end_watches();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let requests = api.requests();
    assert_eq!(requests.len(), 2, "{requests:?}");
    assert!(requests[0].ends_with("?limit=1"), "{requests:?}");
    ended.await;
}

/// A restored server with versions that skip ahead forgets the older ones. Its objects keep the
/// versions of the backup, so a list replaces later states.
#[test]
fn a_list_replaces_a_later_state() {
    let watch = Store::new();
    watch.take(Event::Apply(class("a", 9, "later")));
    watch.take(Event::Init);
    watch.take(Event::InitApply(class("a", 3, "restored")));
    watch.take(Event::InitDone);
    assert_eq!(provisioner(&watch, "a").as_deref(), Some("restored"));
    // But a list may be older than a write that was made meanwhile.
    watch.take(Event::Init);
    watch.apply_write(class("a", 12, "written"));
    watch.take(Event::InitApply(class("a", 3, "restored")));
    watch.take(Event::InitDone);
    assert_eq!(provisioner(&watch, "a").as_deref(), Some("written"));
}

/// The API server has lost the event about an object that is left out, so its users get another one.
#[test]
fn users_learn_again_of_what_is_left_out() {
    let watch = Store::new();
    let is_reported = || {
        watch.take(Event::Init);
        let reported = watch.take(Event::InitApply(left_out("a", 1)));
        watch.take(Event::InitDone);
        reported.is_some()
    };
    assert_eq!([is_reported(), is_reported()], [true, false]);
    watch.went_back();
    assert_eq!([is_reported(), is_reported()], [true, false]);
}
