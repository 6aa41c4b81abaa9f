//! Attacks at the same time, with the victim's work beside them, and what must be true then.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::join_all;
use hostloop_test::cluster::Stock;
use hostloop_test::front::objects::Place;

use crate::attack::Attack;
use crate::processes::Processes;
use crate::site::Site;
use crate::tenant::Tenant;
use crate::victim::{ROUNDS, Victim};

/// Runs attacks of a new adversary, deletes its namespace, and returns what is wrong.
pub(crate) async fn run(
    site: &Site,
    victim: &Victim<'_>,
    stock: &Stock,
    number: usize,
    attacks: &[&Attack],
    thorough: bool,
) -> Vec<String> {
    let began = Instant::now();
    let hold = Duration::from_secs(if thorough { 90 } else { 20 });
    let (name, is_alone) = (format!("adversary-{number}"), attacks.len() == 1);
    let tenant = Tenant::arrive(site, victim, name, is_alone, hold).await;
    let processes = Processes::find(&site.objects).await;
    let memory = processes.begin();
    let over = AtomicBool::new(false);
    let attacking = async {
        let all = attacks
            .iter()
            .map(|attack| attempt(attack, &tenant, thorough));
        let problems = join_all(all).await;
        over.store(true, Ordering::Relaxed);
        problems.into_iter().flatten().collect::<Vec<_>>()
    };
    let working = async {
        let mut times = Vec::new();
        while times.len() < ROUNDS || !over.load(Ordering::Relaxed) {
            times.push(victim.round().await);
        }
        victim.problems(times)
    };
    let (mut wrong, slow) = tokio::join!(attacking, held("the victim's work", working));
    wrong.extend(slow);
    println!("attacked for {:.1?}", began.elapsed());
    wrong.extend(
        processes
            .problems(&site.objects, &memory, tenant.sent())
            .await,
    );
    wrong.extend(victim.secrets_shown(&tenant.namespace).await);
    let leaving = async {
        tenant.leave().await;
        gone(site, stock, &tenant, thorough).await
    };
    wrong.extend(held("the end of the namespace", leaving).await);
    // Deleting a namespace is an attack, too.
    wrong.extend(
        processes
            .problems(&site.objects, &memory, tenant.sent())
            .await,
    );
    wrong.extend(held("what the victim keeps", victim.changes()).await);
    wrong.sort();
    wrong.dedup();
    let names: Vec<_> = attacks.iter().map(|attack| attack.name).collect();
    println!(
        "{} after {:.1?}: {} wrong",
        names.join(", "),
        began.elapsed(),
        wrong.len()
    );
    for what in &wrong {
        println!("  wrong: {what}");
    }
    wrong
}

/// Runs an attack, and returns what it found wrong.
async fn attempt(attack: &Attack, tenant: &Tenant<'_>, thorough: bool) -> Vec<String> {
    let [few, many] = attack.sizes;
    let size = if thorough { many } else { few };
    let began = Instant::now();
    let found = (attack.run)(tenant, size).map(|found| found.err().into_iter().collect());
    let problems = held(attack.name, found).await;
    println!(
        "{} with {size}: {:.1?}, {problems:?}",
        attack.name,
        began.elapsed()
    );
    problems
        .into_iter()
        .map(|what| format!("{}: {what}", attack.name))
        .collect()
}

/// What a check returns. If it panics, its words.
async fn held(what: &str, check: impl Future<Output = Vec<String>>) -> Vec<String> {
    AssertUnwindSafe(check)
        .catch_unwind()
        .await
        .unwrap_or_else(|panic| {
            let words = panic.downcast_ref::<String>().cloned();
            vec![format!("{what}: {}", words.unwrap_or_default())]
        })
}

/// Waits until the namespace and everything of it is gone, and returns what is left.
async fn gone(site: &Site, stock: &Stock, tenant: &Tenant<'_>, thorough: bool) -> Vec<String> {
    let patience = Duration::from_secs(if thorough { 1200 } else { 300 });
    let began = Instant::now();
    let namespace = Place::of("Namespace", "", &tenant.namespace);
    loop {
        // The list runs kubectl, which blocks.
        let mut left = tokio::task::block_in_place(|| stock.left(&site.cluster));
        if left.as_ref().is_ok_and(Vec::is_empty) {
            match site.objects.get(&namespace).await {
                None => return Vec::new(),
                Some(namespace) => left = Ok(vec![namespace["status"].to_string()]),
            }
        }
        if began.elapsed() > patience {
            let left = left.unwrap_or_else(|why| vec![why]);
            let some = left
                .iter()
                .take(10)
                .cloned()
                .collect::<Vec<_>>()
                .join("\n  ");
            return vec![format!(
                "{} things are left after {patience:?}:\n  {some}",
                left.len()
            )];
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
