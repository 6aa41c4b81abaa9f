//! What the API server says about itself: version, time, kinds.

use hostloop_report::error_chain;
use http::header::DATE;
use http::{HeaderMap, Request};
use k8s_openapi::apimachinery::pkg::version::Info;
use k8s_openapi::jiff::fmt::rfc2822::DateTimeParser;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::client::Body;
use tokio::time::timeout;

use crate::api::{Call, DEADLINE, timely};
use crate::check::facts::{Fact, ServedKinds, Server, Unknown};
use crate::manifests::Version;

/// The API server, and this machine's clock against its clock.
pub(super) struct Asked {
    pub(super) server: Fact<Server>,
    /// How far this machine's clock is ahead of the server's.
    pub(super) ahead: SignedDuration,
}

impl Asked {
    /// The time by the server's clock.
    pub(super) fn now(&self) -> Timestamp {
        Timestamp::now() - self.ahead
    }
}

/// Asks for the version. The error says why there is no answer at all.
pub(super) async fn server(client: &Client) -> Result<Asked, String> {
    let request = Request::get("/version")
        .body(Body::empty())
        .map_err(|e| e.to_string())?;
    let before = Timestamp::now();
    let answered = timeout(DEADLINE, client.send(request)).await;
    let answered = answered.map_err(|_| format!("no answer within {} s", DEADLINE.as_secs()))?;
    let response = answered.map_err(|error| error_chain(&error))?;
    let between = before + before.duration_until(Timestamp::now()) / 2;
    let ahead = date(response.headers()).map(|date| between.duration_since(date));
    let status = response.status();
    let body = response
        .into_body()
        .collect_bytes()
        .await
        .map_err(|error| error_chain(&error))?;
    let server = match status.as_u16() {
        200 => serde_json::from_slice(&body)
            .map_err(|error| Unknown::Failed(format!("the version is unreadable: {error}")))
            .map(|info| version(&info, ahead)),
        401 => return Err("it does not accept your credentials: log in again".to_owned()),
        403 => Err(Unknown::Forbidden("get /version".to_owned())),
        code => Err(Unknown::Failed(format!("/version answers {code}"))),
    };
    Ok(Asked {
        server,
        ahead: ahead.unwrap_or_default(),
    })
}

fn version(info: &Info, ahead: Option<SignedDuration>) -> Server {
    Server {
        version: info.git_version.clone(),
        number: Version::of(info).unwrap_or_default(),
        ahead_seconds: ahead.map(|ahead| ahead.as_secs()),
    }
}

/// The time in the header `Date`. It has whole seconds, so the mean is half a second later.
fn date(headers: &HeaderMap) -> Option<Timestamp> {
    let text = headers.get(DATE)?.to_str().ok()?;
    let date = DateTimeParser::new().parse_timestamp(text).ok()?;
    Some(date + SignedDuration::from_millis(500))
}

/// Asks for all served kinds.
pub(super) async fn served(client: &Client) -> Fact<ServedKinds> {
    let call = Call::new("get", "/apis", None, "");
    let groups = timely(call, client.list_api_groups_aggregated()).await?;
    let mut served = ServedKinds::default();
    for group in groups.items {
        let name = group
            .metadata
            .and_then(|metadata| metadata.name)
            .unwrap_or_default();
        for version in group.versions {
            let number = version.version.unwrap_or_default();
            for resource in version.resources.into_iter().filter_map(|r| r.resource) {
                served.add(&name, &resource, &number);
            }
        }
    }
    Ok(served)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_date_is_in_the_middle_of_its_second() {
        let mut headers = HeaderMap::new();
        assert_eq!(date(&headers), None);
        for (text, expected) in [
            (
                "Tue, 24 Nov 2026 08:21:59 GMT",
                Some("2026-11-24T08:21:59.5Z"),
            ),
            ("yesterday", None),
        ] {
            headers.insert(DATE, text.parse().unwrap());
            assert_eq!(date(&headers), expected.map(|text| text.parse().unwrap()));
        }
    }
}
