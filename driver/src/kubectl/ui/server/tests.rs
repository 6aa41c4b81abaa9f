use axum::body::Body;
use futures::StreamExt;
use tower::ServiceExt;

use super::*;

const PAGE: &str = "<html><script>let a = 1;</script><script type=\"module\">b</script></html>";

fn served(is_recording: bool, out: Out) -> Served {
    Served {
        token: Token::random(),
        page: PAGE.to_owned(),
        is_recording,
        hello: Box::new(|| "{\"type\":\"hello\"}".into()),
        out,
    }
}

/// A server, its token and its messages.
fn server(is_recording: bool) -> (Router, String, Out) {
    let out = Out::new();
    let served = served(is_recording, out.clone());
    let token = served.token.as_str().to_owned();
    (router(served), token, out)
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
    let (router, token, _) = server(false);
    let with = |path: &str, token: &str| format!("{path}?token={token}");
    let mut almost = token.clone();
    almost.pop();
    let local = ("host", "127.0.0.1:8080");
    let mut cases = 0;
    for (path, headers, code) in [
        ("/".to_owned(), vec![local], 200),
        ("/".to_owned(), vec![("host", "localhost:8080")], 200),
        ("/".to_owned(), vec![("host", "localhost")], 200),
        ("/".to_owned(), vec![("host", "evil.example")], 403),
        ("/".to_owned(), vec![("host", "127.0.0.1.evil.example:8080")], 403),
        ("/".to_owned(), vec![("host", "")], 403),
        ("/".to_owned(), vec![], 403),
        ("/".to_owned(), vec![local, ("sec-fetch-site", "cross-site")], 200),
        (with("/stream", &token), vec![local], 200),
        (with("/stream", &token), vec![local, ("sec-fetch-site", "same-origin")], 200),
        (with("/stream", &token), vec![local, ("sec-fetch-site", "same-site")], 403),
        (with("/stream", &token), vec![("host", "evil.example")], 403),
        (with("/stream", &almost), vec![local], 401),
        (with("/stream", &format!("{token}0")), vec![local], 401),
        (with("/stream", &token.to_uppercase()), vec![local], 401),
        ("/stream".to_owned(), vec![local], 401),
        ("/stream?token=".to_owned(), vec![local], 401),
        (with("/other", "no"), vec![local], 401),
        (with("/other", &token), vec![local], 404),
    ] {
        let response = get(&router, &path, &headers).await;
        assert_eq!(response.status().as_u16(), code, "{path} {headers:?}");
        let all = response.headers();
        assert!(!all.contains_key("access-control-allow-origin"), "{path}");
        assert_eq!(all["cache-control"], "no-store", "{path}");
        cases += 1;
    }
    assert_eq!(cases, 19);
    let changed = Request::post("/").header("host", "localhost").body(Body::empty()).unwrap();
    let changed = router.clone().oneshot(changed).await.unwrap();
    assert_eq!(changed.status(), StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn a_recording_needs_the_token_too() {
    let (router, token, _) = server(true);
    let local = [("host", "127.0.0.1:1")];
    assert_eq!(get(&router, "/", &local).await.status(), StatusCode::UNAUTHORIZED);
    let page = get(&router, &format!("/?token={token}"), &local).await;
    assert_eq!(page.status(), StatusCode::OK);
    assert_eq!(page.headers()["content-type"], "text/html; charset=utf-8");
    assert_eq!(page.headers()["content-security-policy"], "frame-ancestors 'none'");
}

#[tokio::test]
async fn a_reader_gets_the_history_and_then_what_comes() {
    let (router, token, out) = server(false);
    out.problems.found("before", "x");
    let path = format!("/stream?token={token}");
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
    let out = Out::over(Arc::new(super::super::history::History::new(500)));
    let mut stream = Box::pin(sent(Arc::new(served(false, out.clone()))));
    out.problems.found("first", "x");
    assert!(stream.next().await.is_some());
    assert!(stream.next().await.is_some());
    for number in 0..100 {
        out.problems.found(&number.to_string(), "x");
    }
    assert!(stream.next().await.is_none());
}
