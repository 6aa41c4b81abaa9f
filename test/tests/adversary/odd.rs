//! Odd names, sizes and fields that the API server takes.

use std::time::Duration;

use hostloop_test::front::fields::{is_bound, name};
use hostloop_test::front::objects::{sized, with_attributes};
use serde_json::{Value, json};

use crate::site::{LATER, NOW};
use crate::tenant::Tenant;

/// The greatest length of a name.
const LONGEST: usize = 253;

/// A name of the greatest length, with as many dots as there can be.
fn dotted(n: usize) -> String {
    let dots = "a.".repeat(LONGEST);
    let end = format!("z{n:x}");
    format!("{}{end}", &dots[..(LONGEST - end.len()) / 2 * 2])
}

/// Names, labels and annotations at their limits. They are served like any others.
pub(crate) async fn names(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let odd = json!({"metadata": {
        "labels": {format!("{}/{}", dotted(0), "k".repeat(63)): "v".repeat(63)},
        "annotations": {"adversary.example.com/odd": "\u{202e}\u{301}\n\r\t\u{1b}[2J\u{1f9e8}"}}});
    for n in 0..count {
        tenant.create(tenant.now(&dotted(n), odd.clone())).await?;
        tenant
            .create(tenant.snapshot(&dotted(n), &dotted(n)))
            .await?;
    }
    for n in 0..count {
        tenant
            .until("PersistentVolumeClaim", &dotted(n), "bound", is_bound)
            .await?;
        let is_ready = hostloop_test::front::fields::is_ready_to_use;
        tenant
            .until("VolumeSnapshot", &dotted(n), "ready", is_ready)
            .await?;
    }
    Ok(())
}

/// Sizes from one byte to more than there is. None of the latter is bound.
pub(crate) async fn sizes(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    const SIZES: [&str; 8] = [
        "1",
        "1e3",
        "1m",
        "8Ei",
        "9223372036854775807",
        "1E",
        "7.9999Ei",
        "4095",
    ];
    let claim = |n: usize| {
        let (class, size) = (
            if n.is_multiple_of(3) { LATER } else { NOW },
            SIZES[n % SIZES.len()],
        );
        let name = if n % SIZES.len() % 7 < 3 {
            "small"
        } else {
            "huge"
        };
        tenant.claim(&format!("{name}-{n}"), class, size, json!({}))
    };
    tenant.create_all((0..count).map(claim)).await?;
    tenant.bound("grown", json!({})).await?;
    for size in ["8Ei", "7.9999Ei", "1", "9223372036854775807"] {
        tenant
            .change("PersistentVolumeClaim", "grown", sized(size))
            .await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let claims = tenant
        .site
        .objects
        .list("PersistentVolumeClaim", &tenant.namespace)
        .await;
    let has_all = |claim: &&Value| name(claim).starts_with("huge-") && is_bound(claim);
    match claims.iter().find(has_all) {
        None => Ok(()),
        Some(claim) => Err(format!("{} is bound: {}", name(claim), claim["spec"])),
    }
}

/// Access modes, attributes, selectors and filesystems that can't be had.
pub(crate) async fn fields(tenant: &Tenant<'_>, count: usize) -> Result<(), String> {
    let all = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"];
    let changes = [
        json!({"spec": {"accessModes": all}}),
        json!({"spec": {"accessModes": ["ReadWriteMany"]}}),
        json!({"spec": {"accessModes": ["ReadOnlyMany", "ReadOnlyMany"]}}),
        json!({"spec": {"accessModes": ["ReadWriteOncePod"], "volumeMode": "Block"}}),
        with_attributes("none"),
        with_attributes(&dotted(1)),
        json!({"spec": {"selector": {"matchLabels": {"adversary": "x".repeat(63)}}}}),
        json!({"spec": {"storageClassName": ""}}),
        json!({"spec": {"storageClassName": "none"}}),
    ];
    let claim = |n: usize| tenant.now(&format!("odd-{n}"), changes[n % changes.len()].clone());
    let made = tenant.create_all((0..count).map(claim)).await?;
    for (n, claim) in made.iter().enumerate() {
        let class = if n % 2 == 0 {
            "hostloop-direct"
        } else {
            "none"
        };
        tenant
            .change("PersistentVolumeClaim", name(claim), with_attributes(class))
            .await;
    }
    Ok(())
}
