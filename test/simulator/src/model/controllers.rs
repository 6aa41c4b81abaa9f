//! Kubernetes' own controllers, each over a client of its own name.

use futures::future::join_all;
use futures::{FutureExt, future::BoxFuture};
use hostloop_fake_api::FakeApi;

use super::attach_detach::AttachDetach;
use super::binder::Binder;
use super::ephemeral::Ephemeral;
use super::garbage::Garbage;
use super::namespaces::Namespaces;
use super::protection::Protection;
use super::scheduler::Scheduler;
use super::view::run;

/// Runs all of them until it is dropped.
pub(crate) async fn controllers(api: &FakeApi) {
    let client = |who: &str| api.connect(who).client();
    let all: [BoxFuture<'_, ()>; 7] = [
        run(client("persistentvolume-controller"), Binder).boxed(),
        run(client("volume-protection"), Protection).boxed(),
        run(client("attachdetach-controller"), AttachDetach::default()).boxed(),
        run(client("scheduler"), Scheduler::default()).boxed(),
        run(client("garbage-collector"), Garbage).boxed(),
        run(client("namespace-controller"), Namespaces).boxed(),
        run(client("ephemeral-volume-controller"), Ephemeral).boxed(),
    ];
    join_all(all).await;
}

#[cfg(test)]
mod tests;
