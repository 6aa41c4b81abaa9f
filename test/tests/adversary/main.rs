//! A hostile neighbour: the rights of one namespace's user against a real cluster, with a victim in
//! another namespace.
//!
//! The driver is deployed from its manifest, with its limits. The adversary has the ClusterRole
//! `edit` and all rights on snapshots in its own namespace, and connects to the pods' ports. During
//! each attack the victim makes claims, pods and snapshots. Afterwards:
//!
//! - no process of the driver has restarted, and each has stayed below its memory limit,
//! - the victim's work has taken at most five times as long as without an adversary, and never more
//!   than ten times,
//! - what the victim keeps is unchanged, and its secret is in no log, event or object,
//! - after the adversary's namespace is deleted, nothing is left.
//!
//! docs/security.md has the table of attacks. With `HOSTLOOP_WRITE_DOCS=1` a test rewrites it.
//!
//! - `ADVERSARY_THOROUGH=1`: all of each attack, one after the other. Otherwise a small part of
//!   most of them, all at the same time.
//! - `ADVERSARY_ONLY=WORD,WORD`: only attacks with one of these words in their names.

mod attack;
mod bombs;
mod by_hand;
mod copies;
mod deletions;
mod document;
mod floods;
mod groups;
mod odd;
mod ports;
mod processes;
mod site;
mod tenant;
mod texts;
mod victim;
mod wave;

use hostloop_test::machine;

use attack::{ATTACKS, Attack};
use site::Site;
use victim::Victim;

/// An attack in a namespace of its own: beside claims that are too large to be read, no group is made.
const APART: &str = "groups of blocks";

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_neighbour_harms_nothing() {
    machine::require();
    let thorough = std::env::var_os("ADVERSARY_THOROUGH").is_some();
    let only = std::env::var("ADVERSARY_ONLY").unwrap_or_default();
    let is_chosen = |attack: &&Attack| only.split(',').any(|word| attack.name.contains(word));
    let attacks: Vec<&Attack> = ATTACKS
        .iter()
        .filter(is_chosen)
        .filter(|attack| attack.sizes[usize::from(thorough)] > 0)
        .collect();
    assert!(
        !attacks.is_empty(),
        "no attack of this run has one of {only:?} in its name"
    );
    let (apart, together): (Vec<_>, Vec<_>) =
        attacks.into_iter().partition(|attack| attack.name == APART);
    let at_once = if thorough { 1 } else { together.len().max(1) };

    let site = Site::up().await;
    let empty = site.stock();
    let victim = Victim::settle(&site).await;
    let stock = site.stock();
    let mut wrong = Vec::new();
    let waves = together.chunks(at_once).chain(apart.chunks(1));
    for (number, attacks) in waves.enumerate() {
        wrong.extend(wave::run(&site, &victim, &stock, number, attacks, thorough).await);
    }
    victim.leave().await;
    empty.assert_nothing_left(&site.cluster).await;
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    tokio::task::block_in_place(|| site.down());
}

/// The table in docs/security.md matches the list of attacks.
#[test]
fn the_document_has_this_table() {
    document::check(ATTACKS);
}
