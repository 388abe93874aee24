//! Why TLS failed, in words. The client library says only that verification failed, or which alert a broker sent, so the broker is
//! asked once more, by a handshake that ends before anything is sent.

use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rustls::pki_types::{ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, ClientConnection};

use crate::tls;

const TIMEOUT: Duration = Duration::from_secs(5);

/// Errors of OpenSSL have a number whose last digits are the reason. From here on it is that of the alert that the broker sent.
const FIRST_ALERT: u32 = 1000;
const REASON: u32 = 0xfff;

/// What is wrong with the broker's end of a TLS connection, if it is something that can be seen from here. Blocks.
pub fn inspect(broker: &str, ca: Option<&Path>, checks_name: bool) -> Option<String> {
    let (host, _) = broker.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = ServerName::try_from(host.to_owned()).ok()?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let roots = tls::roots(ca).ok()?;
    let config = config.ok()?.with_root_certificates(roots).with_no_client_auth();
    let mut connection = ClientConnection::new(Arc::new(config), name).ok()?;
    let mut stream = connect(broker).ok()?;
    while connection.is_handshaking() {
        if let Err(error) = connection.complete_io(&mut stream) {
            return describe(&error, broker, host, checks_name);
        }
    }
    None
}

fn connect(broker: &str) -> io::Result<TcpStream> {
    let mut refused = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in broker.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => {
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                return Ok(stream);
            }
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

fn describe(error: &io::Error, broker: &str, host: &str, checks_name: bool) -> Option<String> {
    let tls = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidCertificate(problem)) => of_certificate(problem, broker, host, checks_name),
        Some(rustls::Error::InvalidMessage(_)) => Some(format!(
            "{broker} does not answer in TLS; see its listeners and security.protocol"
        )),
        // A broker closes a connection on which it cannot read a request.
        None if matches!(
            error.kind(),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted
        ) =>
        {
            Some(format!(
                "{broker} ends each connection instead of answering in TLS: TLS is switched off there, or no broker is behind \
                 it; see its listeners and security.protocol"
            ))
        }
        _ => None,
    }
}

fn of_certificate(problem: &CertificateError, broker: &str, host: &str, checks_name: bool) -> Option<String> {
    let words = match problem {
        CertificateError::ExpiredContext { not_after, .. } => format!("expired on {}", date(*not_after)),
        CertificateError::Expired => "has expired".to_owned(),
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("is valid from {} only", date(*not_before))
        }
        CertificateError::NotValidForNameContext { .. } | CertificateError::NotValidForName if !checks_name => {
            return None;
        }
        CertificateError::NotValidForNameContext { presented, .. } => format!(
            "is for {}, not for {host}; see the broker's advertised.listeners, or have a certificate made for that name",
            names(presented)
        ),
        CertificateError::NotValidForName => format!("is not for {host}; see the broker's advertised.listeners"),
        CertificateError::UnknownIssuer => {
            "is not signed by a CA that is trusted here; see ssl.ca.location".to_owned()
        }
        other => format!("cannot be used: {other}"),
    };
    Some(format!("the certificate of {broker} {words}"))
}

/// The names in a certificate, which the library has as `DnsName("host")`.
fn names(presented: &[String]) -> String {
    let plain = |name: &String| match name.split_once('(') {
        Some((_, name)) => name.trim_end_matches(')').trim_matches('"').to_owned(),
        None => name.clone(),
    };
    let names: Vec<String> = presented.iter().map(plain).collect();
    if names.is_empty() { "no name".to_owned() } else { names.join(" and ") }
}

fn date(time: UnixTime) -> String {
    // Certificates end in the year 9999 at the latest, which is also the last that can be printed.
    let time = UNIX_EPOCH + Duration::from_secs(time.as_secs().min(253_402_300_799));
    humantime::format_rfc3339_seconds(time).to_string()
}

/// The address of the broker that a reason of the client library begins with: `sasl_ssl://host:9093/1: …`.
pub fn broker_in(reason: &str) -> Option<&str> {
    let (_, rest) = reason.split_once("://")?;
    let (broker, _) = rest.split_once('/')?;
    Some(broker)
}

/// What the broker said about this client's certificate, by the alert that it sent.
pub fn refusal_of_ours(reason: &str) -> Option<String> {
    let words = match alert(reason)? {
        42 | 43 | 46 => "the broker does not accept this client's certificate, or wants one and got none",
        44 => "this client's certificate has been revoked",
        45 => "this client's certificate has expired",
        48 => "this client's certificate is not signed by a CA that the broker trusts",
        116 => "the broker wants a certificate of this client",
        _ => return None,
    };
    Some(format!("{words}; see ssl.certificate.location and ssl.key.location"))
}

/// The number of the TLS alert in a reason of the client library, which quotes OpenSSL's error as `error:0A000412:…`.
fn alert(reason: &str) -> Option<u32> {
    let (_, rest) = reason.split_once("error:")?;
    let (number, _) = rest.split_once(':')?;
    let reason = u32::from_str_radix(number, 16).ok()? & REASON;
    reason.checked_sub(FIRST_ALERT).filter(|alert| *alert < 256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_names_the_broker_and_the_alert() {
        let handshake = "sasl_ssl://localhost:9093/bootstrap: SSL handshake failed: error:0A000086:SSL routines::certificate \
                         verify failed: broker certificate could not be verified";
        assert_eq!(broker_in(handshake), Some("localhost:9093"));
        assert_eq!(alert(handshake), None);
        assert_eq!(broker_in("ssl://[::1]:9093/1: Receive failed"), Some("[::1]:9093"));
        assert_eq!(broker_in("localhost:9092/1: Disconnected"), None);
        for (number, expected) in [("0A00045C", Some(116)), ("0A000412", Some(42)), ("14094418", Some(48))] {
            let reason = format!("ssl://b:1/1: Receive failed: error:{number}:SSL routines::tlsv13 alert");
            assert_eq!(alert(&reason), expected, "{number}");
            assert!(refusal_of_ours(&reason).expect(number).contains("ssl.certificate.location"));
        }
        assert_eq!(alert("error:xyz:"), None);
        assert_eq!(alert("error:0A00"), None);
    }

    #[test]
    fn each_problem_of_a_certificate_has_words() {
        let of = |problem, checks_name| of_certificate(&problem, "b:9093", "b", checks_name);
        let expired = CertificateError::ExpiredContext {
            time: UnixTime::since_unix_epoch(Duration::from_secs(86_400)),
            not_after: UnixTime::since_unix_epoch(Duration::from_secs(60)),
        };
        let words = of(expired, true).expect("words");
        assert_eq!(words, "the certificate of b:9093 expired on 1970-01-01T00:01:00Z");
        let name = || CertificateError::NotValidForNameContext {
            expected: ServerName::try_from("b").expect("a name"),
            presented: vec![r#"DnsName("other.example")"#.to_owned()],
        };
        assert!(of(name(), true).expect("words").contains("is for other.example, not for b"));
        assert_eq!(of(name(), false), None, "nobody asked");
        assert!(of(CertificateError::UnknownIssuer, true).expect("words").contains("ssl.ca.location"));
    }

    #[test]
    fn a_server_that_hangs_up_is_said_to_speak_no_tls() {
        let of = |kind| describe(&io::Error::from(kind), "b:9093", "b", true);
        let words = of(io::ErrorKind::UnexpectedEof).expect("words");
        assert!(words.contains("b:9093") && words.contains("TLS is switched off"), "{words}");
        assert_eq!(of(io::ErrorKind::ConnectionRefused), None, "nobody is there");
        assert_eq!(of(io::ErrorKind::WouldBlock), None, "no answer in time");
    }
}
