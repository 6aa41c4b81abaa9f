use axum::body::Body;
use futures::StreamExt;
use tower::ServiceExt;

use super::*;
use crate::ui::history::History;

const PAGE: &str = "<html><script>let a = 1;</script><script type=\"module\">b</script></html>";

fn served(recording: Option<&str>, out: Out) -> ServedPage {
    ServedPage {
        keys: Keys::new().0,
        page: PAGE.to_owned(),
        recording: recording.map(str::to_owned),
        hello: Box::new(|| "{\"type\":\"hello\"}".into()),
        out,
    }
}

/// A server, its token and its messages.
fn server(recording: Option<&str>) -> (Router, String, Out) {
    let out = Out::new();
    let served = served(recording, out.clone());
    let token = served.keys.token().as_str().to_owned();
    (router(served), token, out)
}

const LOCAL: (&str, &str) = ("host", "127.0.0.1:8080");

async fn send(router: &Router, request: axum::http::request::Builder) -> (u16, String) {
    let request = request.body(Body::empty()).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    assert_eq!(response.headers()["cache-control"], "no-store");
    assert!(
        !response
            .headers()
            .contains_key("access-control-allow-origin")
    );
    let body = axum::body::to_bytes(response.into_body(), 1 << 20)
        .await
        .unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// Asks for a session with this token.
async fn begin(router: &Router, token: &str, headers: &[(&str, &str)]) -> (u16, String) {
    let mut request = Request::post("/session").header(TOKEN, token);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    send(router, request).await
}

/// A session for this token.
async fn session(router: &Router, token: &str) -> String {
    let (status, body) = begin(router, token, &[LOCAL]).await;
    assert_eq!(status, 200, "{body}");
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    body["session"].as_str().unwrap().to_owned()
}

async fn get(router: &Router, path: &str, headers: &[(&str, &str)]) -> Response {
    let mut request = Request::builder().uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::empty()).unwrap();
    router.clone().oneshot(request).await.unwrap()
}

#[tokio::test]
async fn requests_of_others_are_refused() {
    let (router, token, _) = server(None);
    let session = session(&router, &token).await;
    let with = |path: &str, session: &str| format!("{path}?session={session}");
    let mut almost = session.clone();
    almost.pop();
    let local = LOCAL;
    let mut cases = 0;
    for (path, headers, code) in [
        ("/".to_owned(), vec![local], 200),
        ("/".to_owned(), vec![("host", "localhost:8080")], 200),
        ("/".to_owned(), vec![("host", "localhost")], 200),
        ("/".to_owned(), vec![("host", "evil.example")], 403),
        (
            "/".to_owned(),
            vec![("host", "127.0.0.1.evil.example:8080")],
            403,
        ),
        ("/".to_owned(), vec![("host", "")], 403),
        ("/".to_owned(), vec![], 403),
        (
            "/".to_owned(),
            vec![local, ("sec-fetch-site", "cross-site")],
            200,
        ),
        (with("/stream", &session), vec![local], 200),
        (
            with("/stream", &session),
            vec![local, ("sec-fetch-site", "same-origin")],
            200,
        ),
        (
            with("/stream", &session),
            vec![local, ("sec-fetch-site", "same-site")],
            403,
        ),
        (
            with("/stream", &session),
            vec![("host", "evil.example")],
            403,
        ),
        (with("/stream", &almost), vec![local], 401),
        (with("/stream", &format!("{session}0")), vec![local], 401),
        (with("/stream", &session.to_uppercase()), vec![local], 401),
        ("/stream".to_owned(), vec![local], 401),
        ("/stream?session=".to_owned(), vec![local], 401),
        (with("/other", "no"), vec![local], 401),
        (with("/other", &session), vec![local], 404),
        (with("/stream", &token), vec![local], 401),
        (format!("/stream?token={token}"), vec![local], 401),
        (with("/recording", "no"), vec![local], 401),
        (with("/recording", &session), vec![local], 404),
    ] {
        let response = get(&router, &path, &headers).await;
        assert_eq!(response.status().as_u16(), code, "{path} {headers:?}");
        let all = response.headers();
        assert!(!all.contains_key("access-control-allow-origin"), "{path}");
        assert_eq!(all["cache-control"], "no-store", "{path}");
        cases += 1;
    }
    assert_eq!(cases, 23);
    let changed = Request::post("/")
        .header("host", "localhost")
        .body(Body::empty())
        .unwrap();
    let changed = router.clone().oneshot(changed).await.unwrap();
    assert_eq!(changed.status(), StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn a_token_opens_one_browser() {
    let (router, token, _) = server(None);
    // A request that is refused for another reason does not use it up.
    let evil = ("host", "evil.example");
    for headers in [
        vec![evil],
        vec![],
        vec![LOCAL, ("sec-fetch-site", "cross-site")],
    ] {
        assert_eq!(begin(&router, &token, &headers).await.0, 403, "{headers:?}");
    }
    let (status, why) = begin(&router, "wrong", &[LOCAL]).await;
    assert!(
        status == 401 && why.contains("Open the one that the terminal shows"),
        "{why}"
    );
    session(&router, &token).await;
    let (status, why) = begin(&router, &token, &[LOCAL]).await;
    assert!(
        status == 403 && why.contains("another user of this machine"),
        "{why}"
    );
    // A link or an image of another page can't ask for a session.
    let by_get = Request::get("/session")
        .header("host", "localhost")
        .header(TOKEN, "x");
    let by_get = router
        .clone()
        .oneshot(by_get.body(Body::empty()).unwrap())
        .await
        .unwrap();
    assert_eq!(by_get.status(), StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn a_recording_needs_a_session_too() {
    let (router, token, _) = server(Some("{\"messages\":[]}"));
    let local = |path: &str| Request::get(path).header("host", "127.0.0.1:1");
    assert_eq!(send(&router, local("/recording")).await.0, 401);
    let page = get(&router, "/", &[LOCAL]).await;
    assert_eq!(page.status(), StatusCode::OK);
    assert_eq!(page.headers()["content-type"], "text/html; charset=utf-8");
    assert_eq!(
        page.headers()["content-security-policy"],
        "frame-ancestors 'none'"
    );
    let session = session(&router, &token).await;
    let recording = send(&router, local(&format!("/recording?session={session}"))).await;
    assert_eq!(recording, (200, "{\"messages\":[]}".to_owned()));
}

#[tokio::test]
async fn a_reader_gets_the_history_and_then_what_comes() {
    let (router, token, out) = server(None);
    out.problems.found("before", "x");
    let path = format!("/stream?session={}", session(&router, &token).await);
    let response = get(&router, &path, &[("host", "localhost:1")]).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = response.into_body().into_data_stream();
    let mut next = async || {
        let chunk = body.next().await.unwrap().unwrap();
        String::from_utf8(chunk.to_vec()).unwrap()
    };
    assert_eq!(next().await, "data: {\"type\":\"hello\"}\n\n");
    assert!(next().await.contains("\"about\":\"before\""));
    out.problems.found("after", "two\nlines");
    let after = next().await;
    assert!(after.contains("\"about\":\"after\""), "{after}");
    assert_eq!(after.matches('\n').count(), 2, "one line of data: {after}");
    assert!(out.is_watched());
    drop(body);
    assert!(!out.is_watched(), "its reader is gone");
}

#[tokio::test]
async fn a_reader_that_is_too_slow_is_cut_off() {
    let out = Out::over(Arc::new(History::new(500)));
    let mut stream = Box::pin(sent(Arc::new(served(None, out.clone()))));
    out.problems.found("first", "x");
    assert!(stream.next().await.is_some());
    assert!(stream.next().await.is_some());
    for number in 0..100 {
        out.problems.found(&number.to_string(), "x");
    }
    assert!(stream.next().await.is_none());
}
