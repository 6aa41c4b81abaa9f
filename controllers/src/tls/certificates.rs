//! Certificates that are made by the driver: an authority that lives in the cluster, and certificates
//! that are signed by it and renewed long before they expire.
//!
//! A certificate's times are in seconds since 1970.

use std::fmt;
use std::time::Duration;

use hostloop_report::hex;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use sha2::{Digest, Sha256};

use super::provider::provider;

const DAY: u64 = 24 * 60 * 60;
/// How long an authority lasts.
pub const AUTHORITY_LIFE: u64 = 3650 * DAY;
/// An authority that ends within this time is replaced.
const AUTHORITY_LEFT: u64 = 90 * DAY;
/// How long the other certificates last.
pub const LIFE: u64 = 30 * DAY;
/// A certificate of this age is replaced.
pub const RENEWED_AFTER: u64 = 10 * DAY;
/// How far the clocks of others may be behind.
const SKEW: u64 = 60 * 60;

/// The name of the authority. It must stay the same: certificates name it as their issuer.
const AUTHORITY: &str = "hostloop snapshot metadata";
/// The name in certificates that are not checked by a name.
const NAMELESS: &str = "hostloop";

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    #[error("the certificate of the authority cannot be read: {0}")]
    Read(rustls::pki_types::pem::Error),
    /// The key is of another authority, or the certificate is not one of an authority.
    #[error("the authority does not sign certificates that clients accept: {0}")]
    NotAccepted(String),
    #[error("the authority ends soon")]
    Ends,
}

/// The SHA-256 hash of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The hash of this certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        Fingerprint(Sha256::digest(certificate).into())
    }

    /// Reads 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let mut hash = [0; 32];
        for (n, byte) in hash.iter_mut().enumerate() {
            let pair = text.get(2 * n..2 * n + 2)?;
            *byte = u8::from_str_radix(pair, 16).ok()?;
        }
        Some(Fingerprint(hash))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A certificate with its key.
#[derive(Clone)]
pub struct Identity {
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Identity")
            .field(&self.fingerprint())
            .finish()
    }
}

impl Identity {
    /// A new key with a certificate that it signed itself. Peers know it by its fingerprint.
    pub fn self_signed(now: u64) -> Result<Self, CertificateError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new([NAMELESS.to_owned()])?;
        params.distinguished_name = named(NAMELESS);
        set_validity(&mut params, now, AUTHORITY_LIFE);
        Ok(Identity {
            certificate: params.self_signed(&key)?.into(),
            key: key.serialize_der(),
        })
    }

    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The private key.
    pub fn key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key.clone()).into()
    }

    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }
}

/// A certificate authority of the cluster.
pub struct Authority {
    pem: String,
    key: KeyPair,
    ends: u64,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Authority");
        shown.field("ends", &self.ends).finish_non_exhaustive()
    }
}

/// An authority as it is stored.
#[derive(Clone, Copy)]
pub struct StoredAuthority<'a> {
    pub certificate: &'a str,
    pub key: &'a str,
    /// When it ends.
    pub ends: &'a str,
}

impl Authority {
    /// Makes a new authority.
    pub fn new(now: u64) -> Result<Self, CertificateError> {
        let key = KeyPair::generate()?;
        let mut params = authority()?;
        set_validity(&mut params, now, AUTHORITY_LIFE);
        Ok(Authority {
            pem: params.self_signed(&key)?.pem(),
            key,
            ends: now + AUTHORITY_LIFE,
        })
    }

    /// Reads a stored authority. It fails if clients would not accept what this one signs, or will
    /// not do so for long.
    pub fn read(stored: StoredAuthority<'_>, now: u64) -> Result<Self, CertificateError> {
        let ends = stored.ends.trim().parse().unwrap_or(0);
        if ends < now + AUTHORITY_LEFT {
            return Err(CertificateError::Ends);
        }
        let authority = Authority {
            pem: stored.certificate.to_owned(),
            key: KeyPair::from_pem(stored.key)?,
            ends,
        };
        authority.check(now)?;
        Ok(authority)
    }

    /// The certificate as PEM, for clients.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The private key as PEM. It goes into the Secret, and nowhere else.
    pub fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }

    /// When it ends.
    pub fn ends(&self) -> u64 {
        self.ends
    }

    /// Makes a certificate for a server that clients reach by these names or addresses.
    pub fn server(&self, hosts: &[String], now: u64) -> Result<Identity, CertificateError> {
        self.sign(hosts, ExtendedKeyUsagePurpose::ServerAuth, now)
    }

    /// Makes a certificate for a client.
    pub fn client(&self, now: u64) -> Result<Identity, CertificateError> {
        let hosts = [NAMELESS.to_owned()];
        self.sign(&hosts, ExtendedKeyUsagePurpose::ClientAuth, now)
    }

    fn sign(
        &self,
        hosts: &[String],
        purpose: ExtendedKeyUsagePurpose,
        now: u64,
    ) -> Result<Identity, CertificateError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(hosts)?;
        params.distinguished_name = named(NAMELESS);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![purpose];
        params.use_authority_key_identifier_extension = true;
        set_validity(&mut params, now, LIFE);
        let issuer = Issuer::new(authority()?, &self.key);
        Ok(Identity {
            certificate: params.signed_by(&key, &issuer)?.into(),
            key: key.serialize_der(),
        })
    }

    /// Fails if a client that trusts the certificate refuses what the key signs.
    fn check(&self, now: u64) -> Result<(), CertificateError> {
        let signed = self.server(&[NAMELESS.to_owned()], now)?;
        let roots = roots(&self.pem)?;
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider())
            .build()
            .map_err(not_accepted)?;
        let name = ServerName::try_from(NAMELESS).map_err(not_accepted)?;
        let time = UnixTime::since_unix_epoch(Duration::from_secs(now));
        verifier
            .verify_server_cert(signed.certificate(), &[], &name, &[], time)
            .map_err(not_accepted)?;
        Ok(())
    }
}

fn not_accepted(error: impl fmt::Display) -> CertificateError {
    CertificateError::NotAccepted(error.to_string())
}

/// The certificates of authorities that a text contains.
pub fn roots(pem: &str) -> Result<RootCertStore, CertificateError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(CertificateError::Read)?;
        roots.add(certificate).map_err(not_accepted)?;
    }
    Ok(roots)
}

/// The parameters of an authority. Whatever it signs is signed by these and its key.
fn authority() -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name = named(AUTHORITY);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    Ok(params)
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn set_validity(params: &mut CertificateParams, now: u64, life: u64) {
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(now.saturating_sub(SKEW));
    params.not_after = epoch + Duration::from_secs(now + life);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In January 2027.
    const NOW: u64 = 1_800_000_000;

    fn stored(authority: &Authority) -> [String; 3] {
        [
            authority.pem().to_owned(),
            authority.key_pem(),
            authority.ends().to_string(),
        ]
    }

    fn read([certificate, key, ends]: &[String; 3], now: u64) -> Result<Authority, String> {
        let stored = StoredAuthority {
            certificate,
            key,
            ends,
        };
        Authority::read(stored, now).map_err(|error| error.to_string())
    }

    #[test]
    fn an_authority_is_used_again_until_it_ends() {
        let made = Authority::new(NOW).unwrap();
        let texts = stored(&made);
        for (later, usable) in [
            (0, true),
            (365 * DAY, true),
            (AUTHORITY_LIFE - AUTHORITY_LEFT, true),
            (AUTHORITY_LIFE - AUTHORITY_LEFT + 1, false),
            (AUTHORITY_LIFE, false),
        ] {
            let found = read(&texts, NOW + later);
            assert_eq!(found.is_ok(), usable, "{later}: {found:?}");
        }
        let again = read(&texts, NOW).unwrap();
        assert_eq!(stored(&again), texts);
    }

    #[test]
    fn what_is_no_authority() {
        let (one, other) = (Authority::new(NOW).unwrap(), Authority::new(NOW).unwrap());
        let [certificate, key, ends] = stored(&one);
        let [_, other_key, _] = stored(&other);
        let nothing = String::new();
        for (what, texts) in [
            (
                "the key of another",
                [certificate.clone(), other_key, ends.clone()],
            ),
            (
                "no key",
                [certificate.clone(), nothing.clone(), ends.clone()],
            ),
            (
                "no certificate",
                [nothing.clone(), key.clone(), ends.clone()],
            ),
            (
                "no time",
                [certificate.clone(), key.clone(), nothing.clone()],
            ),
            ("nothing", [nothing.clone(), nothing.clone(), nothing]),
            (
                "a cut certificate",
                [certificate[..certificate.len() / 2].to_owned(), key, ends],
            ),
        ] {
            assert!(read(&texts, NOW).is_err(), "{what}");
        }
    }

    /// The certificate of a server is of no use to a client, and the reverse.
    #[test]
    fn certificates_are_for_one_purpose() {
        let authority = Authority::new(NOW).unwrap();
        let verifier = WebPkiServerVerifier::builder_with_provider(
            roots(authority.pem()).unwrap().into(),
            provider(),
        )
        .build()
        .unwrap();
        let hosts = ["s.ns.svc".to_owned(), "10.0.0.7".to_owned()];
        let server = authority.server(&hosts, NOW).unwrap();
        let client = authority.client(NOW).unwrap();
        for (identity, host, later, accepted) in [
            (&server, "s.ns.svc", 0, true),
            (&server, "10.0.0.7", 0, true),
            (&server, "s.ns.svc", RENEWED_AFTER, true),
            (&server, "s.ns.svc", LIFE + 1, false),
            (&server, "other.ns.svc", 0, false),
            (&server, "10.0.0.8", 0, false),
            (&client, NAMELESS, 0, false),
        ] {
            let verified = verifier.verify_server_cert(
                identity.certificate(),
                &[],
                &ServerName::try_from(host).unwrap(),
                &[],
                UnixTime::since_unix_epoch(Duration::from_secs(NOW + later)),
            );
            assert_eq!(verified.is_ok(), accepted, "{host} {later}: {verified:?}");
        }
    }

    #[test]
    fn fingerprints_are_read_as_they_are_written() {
        let print = Identity::self_signed(NOW).unwrap().fingerprint();
        let text = print.to_string();
        assert_eq!(Fingerprint::parse(&text), Some(print));
        assert_eq!(Fingerprint::parse(&text.to_uppercase()), Some(print));
        for wrong in [
            "",
            &text[1..],
            &format!("{text}0"),
            &text.replace(&text[..2], "+1"),
        ] {
            assert_eq!(Fingerprint::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn no_key_is_shown() {
        let authority = Authority::new(NOW).unwrap();
        let identity = authority.client(NOW).unwrap();
        let shown = format!("{authority:?} {identity:?}");
        assert!(!shown.contains("PRIVATE") && shown.len() < 200, "{shown}");
    }
}
