//! What the flag and the environment say about the collector.

use std::fmt;
use std::str::FromStr;

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::resource::v1::Resource;
use percent_encoding::percent_decode_str;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};
use tonic::transport::Uri;

use super::attribute::attribute;
use super::{Error, NAME};
use crate::serve::Process;

const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";

const NO_TLS: &str = "https is not supported: send to a collector in the cluster or on this machine, \
                      which can forward the spans with TLS";

/// The address of a collector: `http://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    authority: String,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority)
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(word: &str) -> Result<Address, String> {
        let uri: Uri = word
            .parse()
            .map_err(|_| "is not a URL such as http://collector:4317")?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(format!("has no scheme: write http://{word}"));
        };
        match scheme {
            "http" => {}
            // rustls for gRPC would make the program larger by the code of a TLS server, too.
            "https" => return Err(NO_TLS.to_owned()),
            _ => return Err(format!("{scheme} is not supported: write http://HOST:PORT")),
        }
        if authority.as_str().contains('@') {
            return Err(format!("has a user in it: put credentials into {HEADERS}"));
        }
        if authority.port_u16().is_none() || authority.host().is_empty() {
            return Err("is not HOST:PORT: most collectors take OTLP by gRPC at port 4317".into());
        }
        if !matches!(
            uri.path_and_query().map(|path| path.as_str()),
            None | Some("/")
        ) {
            return Err(format!(
                "has a path, which only OTLP over HTTP has: gRPC needs http://{authority}, and \
                 most collectors take it at port 4317"
            ));
        }
        Ok(Address {
            authority: authority.to_string(),
        })
    }
}

/// The variables of the OpenTelemetry specification that are read.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    headers: String,
    attributes: String,
}

impl Environment {
    /// Takes the values of variables from this function.
    pub fn read(value: impl Fn(&str) -> Option<String>) -> Environment {
        Environment {
            headers: value(HEADERS).unwrap_or_default(),
            attributes: value(ATTRIBUTES).unwrap_or_default(),
        }
    }

    /// The headers of each request.
    pub(super) fn headers(&self) -> Result<MetadataMap, Error> {
        let mut headers = MetadataMap::new();
        for (entry, (name, value)) in (1..).zip(pairs(HEADERS, &self.headers)?) {
            let (name, value) = header(&name, &value).ok_or(Error::Header {
                variable: HEADERS,
                entry,
            })?;
            headers.insert(name, value);
        }
        Ok(headers)
    }

    /// Further attributes of the resource.
    pub(super) fn attributes(&self) -> Result<Vec<(String, String)>, Error> {
        pairs(ATTRIBUTES, &self.attributes)
    }
}

/// A header of requests. `None` if gRPC allows no such name or value.
fn header(name: &str, value: &str) -> Option<(AsciiMetadataKey, AsciiMetadataValue)> {
    let name: AsciiMetadataKey = name.to_lowercase().parse().ok()?;
    let mut value: AsciiMetadataValue = value.parse().ok()?;
    value.set_sensitive(true);
    Some((name, value))
}

/// The entries of a list such as `a=1,b=2`. Names and values are percent-encoded.
fn pairs(variable: &'static str, text: &str) -> Result<Vec<(String, String)>, Error> {
    (1..)
        .zip(text.split(','))
        .filter(|(_, entry)| !entry.trim().is_empty())
        .map(|(number, entry)| {
            pair(entry).ok_or(Error::Entry {
                variable,
                entry: number,
            })
        })
        .collect()
}

/// The name and the value of an entry. `None` if it is not of the form `name=value`.
fn pair(entry: &str) -> Option<(String, String)> {
    let (name, value) = entry.split_once('=')?;
    let (name, value) = (decoded(name)?, decoded(value)?);
    (!name.is_empty()).then_some((name, value))
}

fn decoded(text: &str) -> Option<String> {
    let text = percent_decode_str(text.trim()).decode_utf8().ok()?;
    Some(text.into_owned())
}

/// The resource: this start of this process. Attributes from the environment come first.
pub(super) fn resource(boot: &str, process: &Process, more: Vec<(String, String)>) -> Resource {
    let mut attributes: Vec<KeyValue> = Vec::new();
    for (key, value) in more {
        attributes.retain(|known| known.key != key);
        attributes.push(attribute(key, value.as_str()));
    }
    let own = [
        ("service.name", Some(NAME)),
        ("service.version", Some(process.version.as_str())),
        ("service.instance.id", Some(boot)),
        ("k8s.node.name", process.node.as_deref()),
        ("hostloop.process", Some(process.process.as_str())),
    ];
    for (key, value) in own {
        if let Some(value) = value
            && !attributes.iter().any(|known| known.key == key)
        {
            attributes.push(attribute(key, value));
        }
    }
    Resource {
        attributes,
        ..Resource::default()
    }
}

#[cfg(test)]
mod tests;
