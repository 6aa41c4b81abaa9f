//! Whom requests act as, how they log in, and which way they take.

use std::net::SocketAddr;

use clap::Parser;
use kube::config::NoProxyError;
use rstest::rstest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::*;
use crate::api::{ApiError, Call};

#[rstest]
#[case::as_in_the_kubeconfig(&["p"], None, &[], true)]
#[case::user(&["p", "--as", "ann"], Some("ann"), &[], true)]
#[case::groups(
    &["p", "--as-group=a", "--as=ann", "--as-group", "b"], Some("ann"), &["a", "b"], true
)]
#[case::groups_alone(&["p", "--as-group", "a"], None, &[], false)]
fn whom_requests_act_as(
    #[case] line: &[&str],
    #[case] user: Option<&str>,
    #[case] groups: &[&str],
    #[case] is_taken: bool,
) {
    let line: Vec<&str> = line.iter().copied().chain(["status"]).collect();
    let mut person = AuthInfo::default();
    let cli = crate::Cli::try_parse_from(line).unwrap();
    assert_eq!(cli.cluster.impersonate(&mut person).is_ok(), is_taken);
    assert_eq!(person.impersonate.as_deref(), user);
    assert_eq!(person.impersonate_groups.unwrap_or_default(), groups);
}

/// A server for one connection, which gives back the heads of the requests that it read. As a
/// proxy, it lets the first one pass, and answers behind it like the API server.
async fn server(is_proxy: bool) -> (SocketAddr, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut heads = Vec::new();
        if is_proxy {
            heads.push(head(&mut stream).await);
            let passed = b"HTTP/1.1 200 Connection established\r\n\r\n";
            stream.write_all(passed).await.unwrap();
        }
        heads.push(head(&mut stream).await);
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone";
        stream.write_all(answer).await.unwrap();
        heads
    });
    (address, task)
}

/// Reads the head of a request, in small letters.
async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap().to_ascii_lowercase()
}

/// A kubeconfig for this server, with lines of the cluster and the user.
fn kubeconfig(server: &str, cluster: &str, user: &str) -> Kubeconfig {
    let text = format!(
        "apiVersion: v1\n\
         kind: Config\n\
         current-context: there\n\
         contexts: [{{name: there, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: '{server}', \
         insecure-skip-tls-verify: true{cluster}}}}}]\n\
         users: [{{name: u, user: {{{user}}}}}]\n"
    );
    Kubeconfig::from_yaml(&text).unwrap()
}

/// Connects with these settings of the environment, as [`Cluster::connect`] does.
async fn connect(file: Kubeconfig, environment: ProxySettings) -> Result<Cluster, Error> {
    let args = crate::Cli::try_parse_from(["p", "status"]).unwrap().cluster;
    Cluster::of_kubeconfig(&args, file, environment).await
}

async fn get(cluster: &Cluster) -> String {
    let request = http::Request::get("/version").body(Vec::new()).unwrap();
    cluster.client.request_text(request).await.unwrap()
}

#[tokio::test]
async fn requests_take_the_proxy_of_the_kubeconfig() {
    let (proxy, task) = server(true).await;
    let setting = format!(", proxy-url: 'http://ann:se%40cret@{proxy}'");
    let file = kubeconfig("http://api.example.invalid:6443", &setting, "token: abc");
    let cluster = connect(file, ProxySettings::default()).await.unwrap();
    assert_eq!(get(&cluster).await, "done");
    let heads = task.await.unwrap();
    assert!(heads[0].starts_with("connect api.example.invalid:6443 http/1.1\r\n"));
    // "ann:se@cret", in small letters as all of the head.
    assert!(heads[0].contains("\r\nproxy-authorization: basic yw5uonnlqgnyzxq=\r\n"));
    assert!(heads[1].contains("\r\nauthorization: bearer abc\r\n"));
}

#[tokio::test]
async fn requests_take_the_proxy_of_the_environment() {
    let (proxy, task) = server(true).await;
    let file = kubeconfig("http://api.example.invalid:6443", "", "");
    let environment = ProxySettings {
        http_proxy: proxy.to_string(),
        ..ProxySettings::default()
    };
    let cluster = connect(file, environment).await.unwrap();
    assert_eq!(get(&cluster).await, "done");
    let heads = task.await.unwrap();
    assert!(heads[0].starts_with("connect api.example.invalid:6443 "));
    assert!(!heads[0].contains("proxy-authorization"));
}

#[tokio::test]
async fn no_proxy_stands_before_a_server_on_this_machine() {
    let (address, task) = server(false).await;
    // Nothing listens there.
    let setting = ", proxy-url: 'http://127.0.0.1:1'";
    let file = kubeconfig(&format!("http://{address}"), setting, "");
    let environment = ProxySettings {
        http_proxy: "http://127.0.0.1:1".to_owned(),
        ..ProxySettings::default()
    };
    let cluster = connect(file, environment).await.unwrap();
    assert_eq!(get(&cluster).await, "done");
    assert!(task.await.unwrap()[0].starts_with("get /version "));
}

#[rstest]
#[case::exec(
    "exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: sh, \
     args: ['-c', 'echo \"{kind: ExecCredential, apiVersion: client.authentication.k8s.io/v1, \
     status: {token: abc}}\"']}",
    "abc"
)]
// It ends in the year 2100.
#[case::oidc(
    "auth-provider: {name: oidc, config: {id-token: e30.eyJleHAiOjQxMDI0NDQ4MDB9.c2ln}}",
    "e30.eyjlehaiojqxmdi0ndq4mdb9.c2ln"
)]
#[case::gcp("auth-provider: {name: gcp, config: {id-token: abc}}", "abc")]
#[tokio::test]
async fn ways_to_log_in(#[case] user: &str, #[case] token: &str) {
    let (address, task) = server(false).await;
    let file = kubeconfig(&format!("http://{address}"), "", user);
    let cluster = connect(file, ProxySettings::default()).await.unwrap();
    assert_eq!(get(&cluster).await, "done");
    let heads = task.await.unwrap();
    let expected = format!("\r\nauthorization: bearer {token}\r\n");
    assert!(heads[0].contains(&expected), "{}", heads[0]);
}

#[rstest]
#[case::gcp_without_a_program("auth-provider: {name: gcp, config: {access-token: abc}}", "gcp")]
#[case::azure("auth-provider: {name: azure, config: {}}", "azure")]
#[case::unknown("auth-provider: {name: rancher}", "rancher")]
#[tokio::test]
async fn auth_providers_that_are_refused(#[case] user: &str, #[case] provider: &str) {
    let file = kubeconfig("https://api.example.invalid", "", user);
    match connect(file, ProxySettings::default()).await {
        Err(Error::AuthProvider(named)) => assert_eq!(named, provider),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("{provider} was taken"),
    }
}

// The file of certificates is missing: kube would refuse it before the proxy.
#[rstest]
#[case::scheme("ftp://ann:secret@p", "scheme ftp")]
#[case::no_scheme("//ann:secret@proxy:3128", "not the URL of a proxy")]
#[tokio::test]
async fn a_proxy_that_cannot_be_used_is_refused_without_its_password(
    #[case] proxy: &str,
    #[case] says: &str,
) {
    let setting = format!(", certificate-authority: /none/ca, proxy-url: '{proxy}'");
    let file = kubeconfig("https://api.example.invalid", &setting, "");
    let Err(error) = connect(file, ProxySettings::default()).await else {
        panic!("the proxy was taken");
    };
    let text = error.to_string();
    assert!(text.contains("proxy-url") && text.contains(says), "{text}");
    assert!(!text.contains("secret"), "{text}");
}

#[rstest]
#[case::without_a_host(KubeconfigError::ParseNoProxy(NoProxyError::NoHost {
    uri: Box::new("//ann:secret@proxy:3128".parse().unwrap()),
}))]
#[case::entry(KubeconfigError::ParseNoProxy(NoProxyError::ParseMatcher {
    input: "http://ann:secret@pro xy".to_owned(),
}))]
#[case::no_url(KubeconfigError::ParseProxyUrl(
    "http://ann:secret@pro xy".parse::<Uri>().unwrap_err()
))]
fn what_kube_says_of_a_proxy_is_not_shown(#[case] error: KubeconfigError) {
    let error = Error::from(error);
    let cause = std::error::Error::source(&error).map(|cause| cause.to_string());
    let text = format!("{error} {cause:?}");
    assert!(text.contains("as http://proxy.example.com"), "{text}");
    assert!(!text.contains("secret"), "{text}");
}

#[tokio::test]
async fn a_proxy_that_asks_for_a_password_is_in_the_question() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let environment = ProxySettings {
        http_proxy: listener.local_addr().unwrap().to_string(),
        ..ProxySettings::default()
    };
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        head(&mut stream).await;
        let answer = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(answer).await.unwrap();
    });
    let file = kubeconfig("http://api.example.invalid:6443", "", "");
    let cluster = connect(file, environment).await.unwrap();
    let request = http::Request::get("/version").body(Vec::new()).unwrap();
    let error = cluster.client.request_text(request).await.unwrap_err();
    let call = Call::new("get", "version", None, "");
    let text = ApiError::new(call, error).to_string();
    assert!(text.contains("proxy authorization required"), "{text}");
    assert!(text.ends_with("does the proxy let you through?"), "{text}");
}
