//! What a compromised node account can do: tries each verb that its roles grant on a real API
//! server. The targets are objects of its own, of another node and of another driver.
//!
//! docs/security.md has the same table. With `HOSTLOOP_WRITE_DOCS=1` this test rewrites it.

mod document;
mod granted;
mod health;
mod installation;
mod shared;
mod site;
mod steal;
mod table;
mod target;
mod work;

use std::collections::BTreeSet;

use hostloop_test::PATIENCE;
use hostloop_test::front::wait::until;
use installation::Installation;
use serde_json::{Value, json};
use site::Site;
use table::{Attack, Outcome};
use target::Target;

/// Every row has the outcome in the table, for every target.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_may_do_what_the_table_says_and_nothing_else() {
    let site = Site::up().await;
    let attacks = table::attacks();
    let mut wrong = Vec::new();
    for attack in &attacks {
        for (target, expected) in Target::ALL.into_iter().zip(&attack.outcomes) {
            if *expected == Outcome::Nothing {
                continue;
            }
            let found = site.try_attack(attack, target).await;
            if let Some(why) = expected.differs_from(&found) {
                let Attack {
                    verb,
                    resource,
                    what,
                    ..
                } = attack;
                wrong.push(format!("{verb} {resource}, {what}, {target:?}: {why}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ: {wrong:#?}", wrong.len());
}

/// Fails if a role grants more than the table tries.
#[tokio::test(flavor = "multi_thread")]
async fn every_verb_of_the_node_account_is_in_the_table() {
    let site = Site::up().await;
    // Without what this run of the test grants.
    let run = site.names.run.as_str();
    let of_run = |field: &Value| field.as_str().is_some_and(|name| name.starts_with(run));
    let deployed = |binding: &Value| {
        let metadata = &binding["metadata"];
        !of_run(&metadata["namespace"]) && !of_run(&metadata["name"])
    };
    let granted = site
        .cluster
        .rights(&Installation::of_run().account(), deployed)
        .into_iter();
    let granted: BTreeSet<_> = granted
        .map(|[_, verb, resource]| (verb, resource))
        .collect();
    let (reads, attacks) = (table::reads(), table::attacks());
    let tried: BTreeSet<(&str, &str)> = attacks
        .iter()
        .map(|attack| (attack.verb, attack.resource))
        .chain(reads.iter().flat_map(table::Read::pairs))
        .collect();
    let missing: Vec<_> = granted
        .iter()
        .filter(|(verb, resource)| !tried.contains(&(verb.as_str(), resource.as_str())))
        .collect();
    assert!(missing.is_empty(), "granted, and not tried: {missing:#?}");
    let is_granted =
        |verb: &str, resource: &str| granted.contains(&(verb.to_owned(), resource.to_owned()));
    for attack in &attacks {
        let forbidden =
            |outcome: &Outcome| matches!(outcome, Outcome::No(why) if why == &table::ROLE);
        if !is_granted(attack.verb, attack.resource) {
            let all = attack
                .outcomes
                .iter()
                .all(|o| forbidden(o) || *o == Outcome::Nothing);
            assert!(all, "not granted: {} {}", attack.verb, attack.resource);
        }
    }
    for (verb, resource) in reads.iter().flat_map(table::Read::pairs) {
        assert!(is_granted(verb, resource), "not granted: {verb} {resource}");
    }
}

/// The account can read exactly what the table says, and no secret.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_reads_no_secret() {
    let site = Site::up().await;
    for read in table::reads() {
        for verb in read.verbs {
            let found = site.try_read(verb, &read).await;
            assert_eq!(found, Ok(()), "{verb} {}", read.resource);
        }
    }
    for read in table::hidden() {
        for verb in read.verbs {
            let found = site.try_read(verb, &read).await.expect_err(read.resource);
            assert!(
                found.contains(table::ROLE),
                "{verb} {}: {found}",
                read.resource
            );
        }
    }
}

/// A token that names no node, such as one issued outside a pod, cannot write.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_without_a_node_writes_nothing() {
    let site = Site::up().await;
    for attack in &table::attacks() {
        if attack.outcomes[0] == Outcome::Yes {
            let found = site
                .try_attack_with(&site.unbound, attack, Target::Own)
                .await;
            let why = found.expect_err(attack.what);
            assert!(why.contains("not bound to a pod"), "{}: {why}", attack.what);
        }
    }
}

/// An administrator grants the verb "use" on a secret, which allows no read.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_names_a_secret_that_its_node_may_use() {
    let site = Site::up().await;
    let namespace = &site.names.run;
    let named = |name: &str| {
        let secret = json!({"namespace": namespace, "name": name});
        let change = json!({"spec": {"csi": {"nodeStageSecretRef": secret}}});
        Attack::of_own("create", "persistentvolumes", change)
    };
    let (granted, other) = (named("staging"), named("other"));
    let why = site
        .try_attack(&granted, Target::Own)
        .await
        .expect_err("not granted yet");
    assert!(why.contains("may name only secrets"), "{why}");
    let home = Installation::of_run().namespace;
    site.cluster.may_use_secrets(home, namespace, &["staging"]);
    let allowed = || async { site.try_attack(&granted, Target::Own).await.ok() };
    until(PATIENCE, allowed)
        .await
        .expect("a secret that is granted may be named");
    let why = site
        .try_attack(&other, Target::Own)
        .await
        .expect_err("not granted");
    assert!(why.contains("may name only secrets"), "{why}");
}

/// The table in docs/security.md matches this one.
#[test]
fn the_document_has_this_table() {
    document::check(&table::attacks(), &table::reads());
}
