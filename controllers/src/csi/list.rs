//! Reads the driver's lists, page by page.

use std::collections::BTreeMap;
use std::time::Duration;

use hostloop_proto::csi::ListVolumesRequest;

use crate::csi::{Csi, Failure};

/// The driver's node IDs, by volume handle.
pub type Published = BTreeMap<String, Vec<String>>;

/// Why a list of the driver is not available.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error(transparent)]
    Call(#[from] Failure),
    /// The driver repeated a token, so the list would never end.
    #[error("{0}: the CSI driver returned the page token {1:?} twice, so its list has no end")]
    Endless(&'static str, String),
    #[error("{0}: the CSI driver did not return all pages within {1:?}")]
    Timeout(&'static str, Duration),
}

/// Reads a list to its last page, within one deadline. `page` calls the RPC `call` with a token. It
/// returns the entries and the next token. A list without its last page is an error: its user would
/// take the missing entries for deleted objects.
pub async fn all<Entry, F>(
    call: &'static str,
    deadline: Duration,
    page: impl Fn(String) -> F,
) -> Result<Vec<Entry>, ListError>
where
    F: Future<Output = Result<(Vec<Entry>, String), Failure>>,
{
    let pages = async {
        let mut all = Vec::new();
        let mut token = String::new();
        loop {
            let (entries, next) = page(token.clone()).await?;
            all.extend(entries);
            if next.is_empty() {
                return Ok(all);
            }
            if next == token {
                return Err(ListError::Endless(call, token));
            }
            token = next;
        }
    };
    tokio::time::timeout(deadline, pages)
        .await
        .unwrap_or(Err(ListError::Timeout(call, deadline)))
}

/// Lists all volumes with the nodes that they are published to. `max_entries` is the page size; 0
/// means no limit.
pub async fn published(
    csi: &Csi,
    max_entries: u32,
    deadline: Duration,
) -> Result<Published, ListError> {
    let max_entries = i32::try_from(max_entries).unwrap_or(i32::MAX);
    let volumes = all("ListVolumes", deadline, |starting_token| async move {
        let request = ListVolumesRequest {
            max_entries,
            starting_token,
        };
        let page = csi.list_volumes(request, deadline).await?;
        let volumes = page.entries.into_iter().filter_map(|entry| {
            let nodes = entry.status.unwrap_or_default().published_node_ids;
            Some((entry.volume?.volume_id, nodes))
        });
        Ok((volumes.collect(), page.next_token))
    });
    Ok(volumes.await?.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tonic::Status;

    use super::*;

    fn endless(token: &str) -> String {
        format!(
            "ListThings: the CSI driver returned the page token {token:?} twice, so its list has \
             no end"
        )
    }

    #[tokio::test(start_paused = true)]
    async fn lists_end_with_their_last_page_or_an_error() {
        let failure = || Failure {
            call: "ListThings",
            status: Status::aborted("token"),
        };
        for (tokens, expected) in [
            (&[""][..], Ok(1)),
            (&["1", ""], Ok(2)),
            (&["1", "2", "1", ""], Ok(4)),
            (&["1", "1", ""], Err(endless("1"))),
            (&["1", "2", "2", ""], Err(endless("2"))),
            (
                &["1", "2"],
                Err("ListThings: the CSI driver did not return all pages within 10s".to_owned()),
            ),
            (&["1", "failure"], Err(failure().to_string())),
        ] {
            let read = Cell::new(0);
            let listed = all("ListThings", Duration::from_secs(10), |_| async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let number = read.replace(read.get() + 1);
                match tokens[number % tokens.len()] {
                    "failure" => Err(failure()),
                    next => Ok((vec![number], next.to_owned())),
                }
            });
            let entries = listed.await.map(|entries| entries.len());
            assert_eq!(
                entries.map_err(|error| error.to_string()),
                expected,
                "{tokens:?}"
            );
        }
    }
}
