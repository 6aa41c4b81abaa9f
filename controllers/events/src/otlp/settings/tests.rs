use super::*;

fn environment(headers: &str, attributes: &str) -> Environment {
    Environment::read(|name| match name {
        HEADERS => Some(headers.to_owned()),
        ATTRIBUTES => Some(attributes.to_owned()),
        _ => None,
    })
}

#[test]
fn addresses() {
    for (word, address) in [
        ("http://collector:4317", "http://collector:4317"),
        (
            "http://collector.observability.svc:4317/",
            "http://collector.observability.svc:4317",
        ),
        ("HTTP://otlp.example.com:80", "http://otlp.example.com:80"),
        ("http://[::1]:4317", "http://[::1]:4317"),
        ("http://10.0.0.1:4317", "http://10.0.0.1:4317"),
    ] {
        let parsed: Address = word.parse().unwrap();
        assert_eq!(parsed.to_string(), address);
    }
    for (word, reason) in [
        ("", "not a URL"),
        ("http://", "not a URL"),
        ("two words", "not a URL"),
        ("collector:4317", "write http://collector:4317"),
        ("4317", "has no scheme"),
        ("/var/run/otlp.sock", "has no scheme"),
        ("grpc://collector:4317", "grpc is not supported"),
        ("https://collector:4317", "forward the spans with TLS"),
        ("http://collector", "port 4317"),
        ("http://collector:port", "port 4317"),
        ("http://collector:99999", "port 4317"),
        ("http://:4317", "not HOST:PORT"),
        ("http://collector:4318/v1/traces", "OTLP over HTTP"),
        ("http://collector:4317?a=b", "has a path"),
        ("http://user:secret@collector:4317", HEADERS),
    ] {
        let error = word.parse::<Address>().unwrap_err();
        assert!(error.contains(reason), "{word}: {error}");
        assert!(!error.contains("secret"), "{error}");
    }
}

#[test]
fn headers_of_the_environment() {
    let headers = environment(" Authorization = Basic%20a%3D%3D , x-tenant=a=b,", "").headers();
    let headers = headers.unwrap();
    assert_eq!(headers.get("authorization").unwrap(), "Basic a==");
    assert!(headers.get("authorization").unwrap().is_sensitive());
    assert_eq!(
        (headers.get("x-tenant").unwrap(), headers.len()),
        (&"a=b".parse().unwrap(), 2)
    );
    assert!(environment("", "").headers().unwrap().is_empty());
    for (text, reason) in [
        ("secret", "entry 1 is not NAME=VALUE"),
        ("a=1,=secret", "entry 2 is not NAME=VALUE"),
        ("a=1,b=%FF", "entry 2 is not NAME=VALUE"),
        ("a b=secret", "entry 1 is not a header"),
        ("a=1,b=secret%0A", "entry 2 is not a header"),
        ("key-bin=secret", "entry 1 is not a header"),
    ] {
        let error = environment(text, "").headers().unwrap_err().to_string();
        assert!(
            error.starts_with(HEADERS) && error.contains(reason),
            "{text}: {error}"
        );
        assert!(!error.contains("secret"), "{error}");
    }
}

#[test]
fn the_resource_is_this_start_of_the_process() {
    let mut process = Process {
        process: "node".into(),
        node: Some("n1".into()),
        version: "1.2".into(),
    };
    let own = [
        attribute("service.name", "hostloop"),
        attribute("service.version", "1.2"),
        attribute("service.instance.id", "boot"),
        attribute("k8s.node.name", "n1"),
        attribute("hostloop.process", "node"),
    ];
    assert_eq!(resource("boot", &process, Vec::new()).attributes, own);

    process.node = None;
    process.process = "controller".into();
    let more = "k8s.cluster.name=lab,service.name=a,service.name=storage";
    let more = environment("", more).attributes().unwrap();
    let expected = [
        attribute("k8s.cluster.name", "lab"),
        attribute("service.name", "storage"),
        attribute("service.version", "1.2"),
        attribute("service.instance.id", "boot"),
        attribute("hostloop.process", "controller"),
    ];
    assert_eq!(resource("boot", &process, more).attributes, expected);
    let error = environment("", "lab").attributes().unwrap_err().to_string();
    assert!(error.starts_with(ATTRIBUTES), "{error}");
}
