//! TLS to a server: what the server must prove, what this side shows, and what is wrong with a certificate.

mod expiry;
mod handshake;

use std::error::Error;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tracing::warn;

pub use expiry::{InUse, Validity};
pub use handshake::Peer;

/// What the certificate of the server must prove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Nothing. What is sent is encrypted, but anybody may answer.
    Nothing,
    /// That a trusted CA has issued it, for whatever host.
    Chain,
    /// The same, and that it is for the host of the connection.
    ChainAndName,
}

/// The certificate that this side shows, and its key: PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// The settings of connections to one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub verify: Verify,
    /// The trusted CAs, else those of the system.
    pub ca: Option<PathBuf>,
    pub identity: Option<Identity>,
}

impl Settings {
    /// Reads the files. Call it for each connection, and a replaced certificate is used without a restart.
    pub fn client_config(&self) -> Result<ClientConfig, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match self.verify {
            Verify::ChainAndName => builder.with_root_certificates(roots(self.ca.as_deref())?),
            Verify::Chain => {
                let roots = Some(roots(self.ca.as_deref())?);
                let verifier = WithoutName { roots, algorithms };
                builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
            Verify::Nothing => {
                let verifier = WithoutName {
                    roots: None,
                    algorithms,
                };
                builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
        };
        let Some(identity) = &self.identity else {
            return Ok(builder.with_no_client_auth());
        };
        let (chain, key) = (certificates(&identity.certificate)?, private_key(&identity.key)?);
        builder.with_client_auth_cert(chain, key).map_err(|error| {
            let (certificate, key) = (identity.certificate.display(), identity.key.display());
            format!("the certificate {certificate} and the key {key} cannot be used together: {error}")
        })
    }
}

impl Identity {
    /// Warns of a key that every user of this machine may read. Some clients refuse it, but it is what Kubernetes mounts by
    /// default.
    pub fn warn_of_open_key(&self) {
        let Ok(file) = self.key.metadata() else { return };
        let mode = file.permissions().mode() & 0o777;
        if mode & 0o007 != 0 {
            let mode = format_args!("{mode:04o}");
            warn!(key = %self.key.display(), %mode, "every user of this machine may use this key; give it mode 0600 or 0440");
        }
    }
}

/// The trusted CAs: those of this PEM file, else those of the system.
fn roots(ca: Option<&Path>) -> Result<RootCertStore, String> {
    let certificates = match ca {
        Some(file) => certificates(file)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates);
    match ca {
        _ if !roots.is_empty() => Ok(roots),
        Some(file) => Err(format!(
            "{} has no certificate that can be used as a CA",
            file.display()
        )),
        None => Err("this system has no CA certificates; name a file with the CA of the server".to_owned()),
    }
}

/// All certificates of a PEM file, in their order.
fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match all {
        Ok(all) if all.is_empty() => Err(format!("{} has no certificate in PEM format", file.display())),
        Ok(all) => Ok(all),
        Err(error) => Err(unreadable(file, &error)),
    }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(file).map_err(|error| match error {
        pem::Error::NoItemsFound => format!(
            "{} has no private key in PEM format; a key with a passphrase cannot be used, so decrypt it",
            file.display()
        ),
        error => unreadable(file, &error),
    })
}

/// The text has nothing of the file's content, which may be a key.
fn unreadable(file: &Path, error: &pem::Error) -> String {
    match error {
        pem::Error::Io(error) => format!("cannot read {}: {error}", file.display()),
        _ => format!("{} is not a PEM file", file.display()),
    }
}

/// Accepts a certificate for any host. Without `roots` it may also be of any CA, and only the signatures of the handshake are
/// checked.
#[derive(Debug)]
struct WithoutName {
    roots: Option<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for WithoutName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(roots) = &self.roots {
            let parsed = ParsedCertificate::try_from(certificate)?;
            verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, self.algorithms.all)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Is this the name or an address of this machine? What is sent there need not be encrypted.
pub fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// What is wrong with a certificate, the server's or ours, if that is why the connection failed.
pub fn certificate_problem(error: &(dyn Error + 'static)) -> Option<String> {
    match tls_error(error)? {
        rustls::Error::InvalidCertificate(reason) => Some(format!(
            "the server's certificate is not trusted: {}",
            why_not_trusted(reason)
        )),
        rustls::Error::AlertReceived(alert) => refusal_of_ours(*alert),
        _ => None,
    }
}

/// What a server says of our certificate by an alert. `None` if the alert is not about a certificate.
pub fn refusal_of_ours(alert: AlertDescription) -> Option<String> {
    let why = why_refused(alert)?;
    Some(format!("the server refused the client certificate: {why}"))
}

/// The error of the TLS library among the causes of this one.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // As its source, an I/O error names not the error that it holds but the source of that one.
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(held) => Some(held as &(dyn Error + 'static)),
            None => error.source(),
        };
    }
    None
}

fn why_not_trusted(reason: &CertificateError) -> String {
    match reason {
        CertificateError::ExpiredContext { not_after, .. } => format!("it expired on {}", date(*not_after)),
        CertificateError::Expired => "it has expired".to_owned(),
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("it is valid from {} on, which is not yet", date(*not_before))
        }
        CertificateError::UnknownIssuer => "no trusted CA has issued it; is the CA file the right one?".to_owned(),
        CertificateError::NotValidForNameContext { expected, presented } if presented.is_empty() => format!(
            "it has no subjectAltName, where the host {} would have to be; a common name does not count",
            expected.to_str()
        ),
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<&str> = presented.iter().map(|name| plain_name(name)).collect();
            format!("it is for {}, not for {}", names.join(", "), expected.to_str())
        }
        other => other.to_string(),
    }
}

/// Turns `DnsName("db.example")` into `db.example`.
fn plain_name(name: &str) -> &str {
    let inner = name
        .split_once('(')
        .map_or(name, |(_, inner)| inner.trim_end_matches(')'));
    inner.trim_matches('"')
}

fn date(time: UnixTime) -> humantime::Rfc3339Timestamp {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(time.as_secs()))
}

/// `None` if the alert is not about a certificate.
fn why_refused(alert: AlertDescription) -> Option<&'static str> {
    Some(match alert {
        AlertDescription::CertificateExpired => "it has expired",
        AlertDescription::CertificateRevoked => "it is revoked",
        AlertDescription::UnknownCA => "it does not trust the CA that has issued it",
        AlertDescription::CertificateRequired | AlertDescription::NoCertificate => "it needs one, and was shown none",
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::AccessDenied => "it does not accept it; the reason is in the server's log",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn not_trusted(reason: CertificateError) -> String {
        let error = io::Error::new(io::ErrorKind::InvalidData, rustls::Error::InvalidCertificate(reason));
        certificate_problem(&error).expect("about a certificate")
    }

    #[test]
    fn what_is_wrong_with_a_certificate_is_found_inside_an_io_error() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let expired = CertificateError::ExpiredContext {
            time: at(200_000),
            not_after: at(86_400),
        };
        assert!(not_trusted(expired).contains("it expired on 1970-01-02T00:00:00Z"));
        let name = |presented: &[&str]| CertificateError::NotValidForNameContext {
            expected: ServerName::try_from("db.example").expect("a name"),
            presented: presented.iter().map(|name| (*name).to_owned()).collect(),
        };
        let other = not_trusted(name(&["DnsName(\"other.example\")", "IpAddress(10.0.0.1)"]));
        assert!(
            other.ends_with("it is for other.example, 10.0.0.1, not for db.example"),
            "{other}"
        );
        assert!(not_trusted(name(&[])).contains("no subjectAltName"));
    }

    #[test]
    fn only_an_alert_about_a_certificate_is_one() {
        let alert = |alert| certificate_problem(&rustls::Error::AlertReceived(alert));
        assert!(alert(AlertDescription::UnknownCA).is_some_and(|problem| problem.contains("client certificate")));
        assert_eq!(alert(AlertDescription::ProtocolVersion), None);
        assert_eq!(certificate_problem(&io::Error::other("reset")), None);
    }

    #[test]
    fn a_file_that_is_missing_or_of_another_kind_is_named() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let file = folder.path().join("file.pem");
        let missing = certificates(&file).expect_err("missing");
        assert!(
            missing.starts_with("cannot read") && missing.contains("file.pem"),
            "{missing}"
        );
        std::fs::write(&file, "s3cret").expect("writable");
        for problem in [
            roots(Some(&file)).map(drop).expect_err("no PEM"),
            private_key(&file).map(drop).expect_err("no PEM"),
        ] {
            assert!(problem.contains("file.pem") && !problem.contains("s3cret"), "{problem}");
        }
        std::fs::write(&file, "-----BEGIN s3cret\n").expect("writable");
        let broken = private_key(&file).map(drop).expect_err("broken PEM");
        assert!(broken.ends_with("is not a PEM file"), "{broken}");
    }
}
