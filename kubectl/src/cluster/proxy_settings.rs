//! Which proxy leads to the API server. As for kubectl, the kubeconfig goes before the environment.
//! kube itself compares NO_PROXY with the proxy's own address, so its choice is not used.

use std::net::IpAddr;

use http::Uri;
use ipnet::IpNet;

/// What a person has set about proxies. Empty values are not set.
#[derive(Clone, Debug, Default)]
pub(super) struct ProxySettings {
    /// `proxy-url` of the cluster in the kubeconfig.
    pub(super) proxy_url: String,
    pub(super) https_proxy: String,
    pub(super) http_proxy: String,
    pub(super) no_proxy: String,
}

/// Why a proxy can't be used. It does not show the setting, which may have a password.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// The setting can't be read.
    #[error("{0} is not the URL of a proxy, such as http://proxy.example.com:3128")]
    NotAUrl(&'static str),
    /// The proxy speaks another protocol.
    #[error("{0} has the scheme {1}: a proxy has http, https or socks5")]
    UnknownScheme(&'static str, String),
}

impl ProxySettings {
    /// The variables of the environment, without the kubeconfig's setting.
    pub(super) fn of_environment() -> ProxySettings {
        ProxySettings {
            proxy_url: String::new(),
            https_proxy: variable("HTTPS_PROXY", "https_proxy"),
            http_proxy: variable("HTTP_PROXY", "http_proxy"),
            no_proxy: variable("NO_PROXY", "no_proxy"),
        }
    }

    /// The proxy of a server, if it has one. A server on this machine has none, as that of kind:
    /// a proxy would look for it on its own machine. `NO_PROXY` is about the environment's alone.
    pub(super) fn proxy_of(&self, server: &Uri) -> Result<Option<Uri>, ProxyError> {
        if is_loopback(server) {
            return Ok(None);
        }
        if !self.proxy_url.is_empty() {
            return parse("proxy-url in the kubeconfig", &self.proxy_url).map(Some);
        }
        let (name, proxy) = if server.scheme_str() == Some("http") {
            ("HTTP_PROXY", &self.http_proxy)
        } else {
            ("HTTPS_PROXY", &self.https_proxy)
        };
        if proxy.is_empty() || leaves_out(&self.no_proxy, server) {
            return Ok(None);
        }
        parse(name, proxy).map(Some)
    }
}

/// The value of the first variable that has one.
fn variable(name: &str, other: &str) -> String {
    let value = std::env::var(name).unwrap_or_default();
    if value.is_empty() {
        std::env::var(other).unwrap_or_default()
    } else {
        value
    }
}

/// Reads the URL of a proxy. Without a scheme it is http, as for kubectl and curl.
fn parse(setting: &'static str, proxy: &str) -> Result<Uri, ProxyError> {
    let (scheme, rest) = proxy.split_once("://").unwrap_or(("http", proxy));
    // The proxy itself looks names up for either.
    let scheme = match scheme {
        "http" | "https" | "socks5" => scheme,
        "socks5h" => "socks5",
        other if is_scheme(other) => {
            return Err(ProxyError::UnknownScheme(setting, other.to_owned()));
        }
        _ => return Err(ProxyError::NotAUrl(setting)),
    };
    let uri: Uri = format!("{scheme}://{rest}")
        .parse()
        .map_err(|_| ProxyError::NotAUrl(setting))?;
    let Some(authority) = uri
        .authority()
        .filter(|authority| !authority.host().is_empty())
    else {
        return Err(ProxyError::NotAUrl(setting));
    };
    if scheme != "socks5" || authority.port().is_some() {
        return Ok(uri);
    }
    format!("socks5://{authority}:1080")
        .parse()
        .map_err(|_| ProxyError::NotAUrl(setting))
}

/// True if it is a scheme, and no piece of a user and a password.
fn is_scheme(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// True if `NO_PROXY` names the server: by `*`, its name, a name above its own, its address, or a
/// network; each but a network may have a port.
fn leaves_out(no_proxy: &str, server: &Uri) -> bool {
    let host = host_of(server);
    let port = server.port_u16().or(match server.scheme_str() {
        Some("http") => Some(80),
        _ => Some(443),
    });
    no_proxy
        .split(',')
        .any(|entry| is_named(entry.trim(), &host, port))
}

/// True if an entry of `NO_PROXY` names this host and port.
fn is_named(entry: &str, host: &str, port: Option<u16>) -> bool {
    if entry == "*" {
        return true;
    }
    let address: Option<IpAddr> = host.parse().ok();
    if let Ok(network) = entry.parse::<IpNet>() {
        return address.is_some_and(|address| network.contains(&address));
    }
    let (name, only_port) = split_port(entry);
    if only_port.is_some() && only_port != port {
        return false;
    }
    if let Ok(named) = without_brackets(name).parse::<IpAddr>() {
        return address == Some(named);
    }
    let name = name.to_ascii_lowercase();
    let name = name.strip_prefix('*').unwrap_or(&name);
    if name.is_empty() || address.is_some() {
        return false;
    }
    // A leading dot leaves the name itself in, and its subdomains out.
    let Some(below) = host.strip_suffix(name) else {
        return false;
    };
    if name.starts_with('.') {
        !below.is_empty()
    } else {
        below.is_empty() || below.ends_with('.')
    }
}

/// Splits a host and its port. An IPv6 address has a port only behind brackets.
fn split_port(entry: &str) -> (&str, Option<u16>) {
    match entry.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => match port.parse() {
            Ok(port) => (host, Some(port)),
            Err(_) => (entry, None),
        },
        _ => (entry, None),
    }
}

/// True if the API server is on this machine.
fn is_loopback(server: &Uri) -> bool {
    let host = host_of(server);
    match host.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

/// The server's host in small letters, without the brackets of an IPv6 address.
fn host_of(server: &Uri) -> String {
    let host = server.host().unwrap_or_default().to_ascii_lowercase();
    without_brackets(&host).trim_end_matches('.').to_owned()
}

fn without_brackets(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const SERVER: &str = "https://api.example.com:6443";

    #[rstest]
    #[case::ipv4("https://127.0.0.1:6443", true)]
    #[case::another_ipv4("https://127.8.0.1", true)]
    #[case::ipv6("https://[::1]:6443", true)]
    #[case::name("https://localhost:6443", true)]
    #[case::name_below("https://dev.localhost", true)]
    #[case::other_address("https://10.0.0.1:6443", false)]
    #[case::other_ipv6("https://[2001:db8::1]", false)]
    #[case::other_name("https://localhost.example.com", false)]
    fn servers_that_no_proxy_reaches(#[case] server: &str, #[case] is_here: bool) {
        let server = server.parse().unwrap();
        let everywhere = ProxySettings {
            proxy_url: "http://kubeconfig:3128".to_owned(),
            https_proxy: "http://environment:3128".to_owned(),
            ..ProxySettings::default()
        };
        assert_eq!(is_loopback(&server), is_here);
        assert_eq!(everywhere.proxy_of(&server).unwrap().is_none(), is_here);
    }

    #[rstest]
    #[case::nothing(SERVER, ["", "", "", ""], None)]
    #[case::https(SERVER, ["", "http://p:1", "http://q:2", ""], Some("http://p:1/"))]
    #[case::http("http://api.test", ["", "http://p:1", "http://q:2", ""], Some("http://q:2/"))]
    #[case::only_the_other(SERVER, ["", "", "http://q:2", ""], None)]
    #[case::kubeconfig_first(SERVER, ["http://k:3", "http://p:1", "", ""], Some("http://k:3/"))]
    #[case::left_out(SERVER, ["", "http://p:1", "", "example.com"], None)]
    #[case::kubeconfig_all_the_same(SERVER, ["http://k:3", "", "", "*"], Some("http://k:3/"))]
    #[case::no_scheme(SERVER, ["", "p:1", "", ""], Some("http://p:1/"))]
    #[case::password(SERVER, ["", "http://a:b%40@p:1", "", ""], Some("http://a:b%40@p:1/"))]
    #[case::https_proxy(SERVER, ["https://p", "", "", ""], Some("https://p/"))]
    #[case::socks(SERVER, ["socks5://p:9", "", "", ""], Some("socks5://p:9/"))]
    #[case::socks_by_name(SERVER, ["socks5h://p", "", "", ""], Some("socks5://p:1080/"))]
    fn proxies(#[case] server: &str, #[case] set: [&str; 4], #[case] proxy: Option<&str>) {
        let [proxy_url, https_proxy, http_proxy, no_proxy] = set.map(str::to_owned);
        let settings = ProxySettings {
            proxy_url,
            https_proxy,
            http_proxy,
            no_proxy,
        };
        let found = settings.proxy_of(&server.parse().unwrap()).unwrap();
        assert_eq!(found.map(|uri| uri.to_string()).as_deref(), proxy);
    }

    #[rstest]
    #[case::scheme("ftp://p", "scheme ftp")]
    #[case::no_scheme("ann:sec://ret@p:3128", "not the URL")]
    #[case::nothing_before("//ann:secret@p:3128", "not the URL")]
    #[case::nothing_behind("http://", "not the URL")]
    #[case::blank("http://a b", "not the URL")]
    fn proxies_that_cannot_be_used(#[case] proxy: &str, #[case] says: &str) {
        let settings = ProxySettings {
            https_proxy: proxy.to_owned(),
            ..ProxySettings::default()
        };
        let error = settings.proxy_of(&SERVER.parse().unwrap()).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("HTTPS_PROXY") && text.contains(says),
            "{text}"
        );
        assert!(!text.contains("ann"), "{text}");
    }

    #[rstest]
    #[case::all("*", SERVER, true)]
    #[case::name("api.example.com", SERVER, true)]
    #[case::capitals("API.Example.COM", SERVER, true)]
    #[case::name_above("example.com", SERVER, true)]
    #[case::end_of_a_name("xample.com", SERVER, false)]
    #[case::suffix(".example.com", SERVER, true)]
    #[case::suffix_itself(".api.example.com", SERVER, false)]
    #[case::star("*.example.com", SERVER, true)]
    #[case::port("example.com:6443", SERVER, true)]
    #[case::other_port("example.com:443", SERVER, false)]
    #[case::default_port("example.com:443", "https://api.example.com", true)]
    #[case::among_others(" a.test , ,api.example.com", SERVER, true)]
    #[case::empty("", SERVER, false)]
    #[case::empty_entries(",,", SERVER, false)]
    #[case::network("10.0.0.0/8", "https://10.1.2.3:6443", true)]
    #[case::other_network("10.0.0.0/16", "https://10.1.2.3:6443", false)]
    #[case::network_and_name("10.0.0.0/8", SERVER, false)]
    #[case::ipv6_network("2001:db8::/32", "https://[2001:db8::1]:6443", true)]
    #[case::address("10.1.2.3", "https://10.1.2.3:6443", true)]
    #[case::address_and_port("10.1.2.3:6443", "https://10.1.2.3:6443", true)]
    #[case::address_is_no_suffix("2.3", "https://10.1.2.3:6443", false)]
    #[case::ipv6("2001:db8::1", "https://[2001:db8::1]", true)]
    #[case::ipv6_and_port("[2001:db8::1]:6443", "https://[2001:db8::1]:6443", true)]
    #[case::ipv6_and_other_port("[2001:db8::1]:443", "https://[2001:db8::1]:6443", false)]
    fn what_no_proxy_leaves_out(
        #[case] no_proxy: &str,
        #[case] server: &str,
        #[case] is_out: bool,
    ) {
        assert_eq!(leaves_out(no_proxy, &server.parse().unwrap()), is_out);
    }
}
