//! The chart as a package: what Helm packs is the chart's folder, a release has the same, and a
//! registry gives it back as it was pushed.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderName, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hostloop_report::hex;
use hostloop_test::machine::{root, run, text};
use hostloop_test::scratch::Scratch;
use hostloop_test::tools;
use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest, Sha256};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Content by path.
type Files = BTreeMap<String, Vec<u8>>;

/// Reads what is in a folder, and what its links lead to.
fn files_in(folder: &Path) -> Files {
    let mut files = Files::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(inner) = folders.pop() {
        for entry in std::fs::read_dir(&inner).expect("it is a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(folder).expect("it is in the folder");
            let content = std::fs::read(&path).expect("a file can be read");
            files.insert(text(name).to_owned(), content);
        }
    }
    files
}

/// Reads the files of a package.
fn files_of(package: &Path) -> Files {
    let scratch = Scratch::new();
    let folder = scratch.dir("unpacked");
    run("tar", &["-xzf", text(package), "-C", text(&folder)]);
    files_in(&folder.join("hostloop"))
}

/// The package that a release has, with this image if one is named.
fn release(package: &Path, image: &[&str]) {
    let script = root().join("scripts/render");
    run(
        text(&script),
        &[&["--chart", text(package)][..], image].concat(),
    );
}

/// Takes the descriptions of the chart and of the one in it, as data: Helm writes its own form of
/// them, which says the same.
fn take_descriptions(files: &mut Files) -> [Value; 2] {
    ["Chart.yaml", "charts/snapshot-api/Chart.yaml"].map(|name| {
        let text = files.remove(name);
        let text = text.unwrap_or_else(|| panic!("there is no {name}"));
        let mut description: Value = serde_saphyr::from_slice(&text).expect("it is YAML");
        let dependencies = description.get_mut("dependencies");
        let dependencies = dependencies.and_then(Value::as_array_mut);
        for dependency in dependencies.into_iter().flatten() {
            // Helm writes down that no place is given.
            let fields = dependency.as_object_mut().expect("it is an object");
            fields.retain(|name, value| name != "repository" || value != "");
        }
        description
    })
}

#[test]
fn what_helm_packs_is_the_folder() {
    let chart = root().join("deploy/chart/hostloop");
    let scratch = Scratch::new();
    let args = ["package", text(&chart), "-d", text(scratch.path())];
    tools::run_helm(&args).unwrap_or_else(|why| panic!("{why}"));
    let mut packed = files_of(&scratch.path().join(format!("hostloop-{VERSION}.tgz")));

    let mut folder = files_in(&chart);
    let ignored = String::from_utf8(folder[".helmignore"].clone()).expect("it is text");
    for line in ignored.lines().filter(|line| !line.starts_with('#')) {
        assert!(folder.remove(line).is_some(), "there is no {line}");
    }
    let released = scratch.path().join("released.tgz");
    release(&released, &[]);
    assert!(files_of(&released) == folder, "a release has other files");

    assert_eq!(
        take_descriptions(&mut packed),
        take_descriptions(&mut folder)
    );
    let names = |files: &Files| -> Vec<String> { files.keys().cloned().collect() };
    assert_eq!(names(&packed), names(&folder));
    for (name, content) in &folder {
        assert!(packed[name] == *content, "Helm packs another {name}");
    }
}

/// What was pushed, with its media type, by its path.
type Pushed = Arc<Mutex<HashMap<String, (String, Bytes)>>>;

fn digest(content: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(content)))
}

/// As much of a registry as Helm asks for.
async fn registry(State(pushed): State<Pushed>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    let body = to_bytes(body, usize::MAX).await.expect("a whole request");
    if parts.method == Method::POST {
        let place = [(header::LOCATION, format!("{path}one"))];
        return (StatusCode::ACCEPTED, place).into_response();
    }
    let digest_header = HeaderName::from_static("docker-content-digest");
    if parts.method == Method::PUT {
        let sum = digest(&body);
        let kind = parts.headers.get(header::CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or_default().to_owned();
        let place = path
            .split_once("uploads/")
            .map_or_else(|| path.to_owned(), |(blobs, _)| format!("{blobs}{sum}"));
        pushed.lock().insert(place, (kind, body));
        return (StatusCode::CREATED, [(digest_header, sum)]).into_response();
    }
    let Some((kind, content)) = pushed.lock().get(path).cloned() else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let about = [
        (header::CONTENT_TYPE, kind),
        (digest_header, digest(&content)),
    ];
    (about, content).into_response()
}

/// Starts a registry, and returns the address of its charts.
async fn serve(pushed: Pushed) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("there is a free port");
    let address = listener.local_addr().expect("it has an address");
    let router = Router::new().fallback(registry).with_state(pushed);
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            eprintln!("the registry: {error}");
        }
    });
    format!("oci://{address}/charts")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registry_gives_back_what_a_release_pushes() {
    let scratch = Scratch::new();
    let package = scratch.path().join(format!("hostloop-{VERSION}.tgz"));
    release(&package, &["--image", "registry.example.com/hostloop:9"]);
    let pushed = Pushed::default();
    let charts = serve(pushed.clone()).await;
    let push = ["push", text(&package), &*charts, "--plain-http"];
    tools::run_helm(&push).unwrap_or_else(|why| panic!("{why}"));
    let tag = format!("/v2/charts/hostloop/manifests/{VERSION}");
    assert!(pushed.lock().contains_key(&tag), "the version is the tag");

    let chart = format!("{charts}/hostloop");
    let of_version = ["--version", VERSION, "--plain-http"];
    let pulled = scratch.dir("pulled");
    let pull = [&["pull", &*chart, "-d", text(&pulled)][..], &of_version[..]].concat();
    tools::run_helm(&pull).unwrap_or_else(|why| panic!("{why}"));
    let given = std::fs::read(pulled.join(format!("hostloop-{VERSION}.tgz")));
    let given = given.expect("the package was pulled");
    assert!(
        given == std::fs::read(&package).expect("it is there"),
        "the bytes differ"
    );
}
