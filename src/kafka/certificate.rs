//! Which certificates are in use, and why TLS failed, in words. The client library does not tell the first, and of the second only
//! that verification failed, or which alert a broker sent. So brokers are asked by a handshake that ends before anything is sent.

use std::io;
use std::path::PathBuf;

use rustls::AlertDescription;

use super::security::Security;
use crate::tls::{self, InUse, Peer, Validity, Verify};

/// Errors of OpenSSL have a number whose last digits are the reason. From here on it is that of the alert that the broker sent.
const FIRST_ALERT: u32 = 1000;
const REASON: u32 = 0xfff;

/// What is wrong with the broker's end of a TLS connection, if that can be seen from here. Blocks.
pub fn inspect(broker: &str, ca: Option<PathBuf>, verify: Verify) -> Option<String> {
    let settings = tls::Settings {
        verify,
        ca,
        identity: None,
    };
    let shown = peer(broker, &settings).certificates(|_| Ok(()));
    describe(&shown.err()?, broker)
}

/// The host of a broker's address, without its port and without the brackets of IPv6.
pub fn host_of(broker: &str) -> &str {
    let host = match broker.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => broker,
    };
    host.trim_start_matches('[').trim_end_matches(']')
}

/// The certificates in use, and when they expire. What brokers show is read whether or not it is trusted. Blocks.
pub fn in_use(brokers: &str, security: &Security) -> InUse {
    if !security.uses_tls {
        return InUse::default();
    }
    let settings = tls::Settings {
        verify: Verify::Nothing,
        ca: None,
        identity: security.identity_files(),
    };
    let brokers = brokers.split(',').map(|broker| peer(broker.trim(), &settings));
    let shown = brokers.map(|broker| broker.certificates(|_| Ok(()))).collect();
    InUse {
        ca: security.ca.as_deref().map(Validity::of_cas),
        client: security.certificate.as_deref().map(Validity::of_file),
        server: Validity::of_servers(shown),
    }
}

fn peer<'a>(broker: &'a str, settings: &'a tls::Settings) -> Peer<'a, &'a str> {
    Peer {
        address: broker,
        host: host_of(broker),
        settings,
    }
}

fn describe(error: &io::Error, broker: &str) -> Option<String> {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    let is_no_tls = match cause {
        Some(rustls::Error::InvalidCertificate(_)) => {
            let problem = tls::certificate_problem(error)?;
            return Some(format!(
                "{broker}: {problem}. See ssl.ca.location, and the broker's advertised.listeners"
            ));
        }
        Some(rustls::Error::InvalidMessage(_)) => true,
        // An alert may be about the certificate that was not shown here.
        Some(_) => false,
        // A broker closes a connection on which it cannot read a request.
        None => matches!(
            error.kind(),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted
        ),
    };
    is_no_tls.then(|| {
        format!("{broker} does not answer in TLS: is TLS switched off there? See its listeners and security.protocol")
    })
}

/// The address of the broker that a reason of the client library begins with: `sasl_ssl://host:9093/1: …`.
pub fn broker_in(reason: &str) -> Option<&str> {
    let (_, rest) = reason.split_once("://")?;
    let (broker, _) = rest.split_once('/')?;
    Some(broker)
}

/// What the broker said about this client's certificate, by the alert that it sent.
pub fn refusal_of_ours(reason: &str) -> Option<String> {
    let alert = u8::try_from(alert(reason)?).ok()?;
    let words = tls::refusal_of_ours(AlertDescription::from(alert))?;
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
            assert!(
                refusal_of_ours(&reason)
                    .expect(number)
                    .contains("ssl.certificate.location")
            );
        }
        assert_eq!(alert("error:xyz:"), None);
        assert_eq!(alert("error:0A00"), None);
    }

    #[test]
    fn a_server_that_hangs_up_is_said_to_speak_no_tls() {
        let of = |kind| describe(&io::Error::from(kind), "b:9093");
        let words = of(io::ErrorKind::UnexpectedEof).expect("words");
        assert!(words.contains("b:9093 does not answer in TLS"), "{words}");
        assert_eq!(of(io::ErrorKind::ConnectionRefused), None, "nobody is there");
        assert_eq!(of(io::ErrorKind::WouldBlock), None, "no answer in time");
    }

    #[test]
    fn what_is_wrong_with_a_certificate_is_said_with_the_broker() {
        let unknown = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let words = describe(&io::Error::new(io::ErrorKind::InvalidData, unknown), "b:9093").expect("words");
        assert!(words.starts_with("b:9093: the server's certificate"), "{words}");
        assert!(words.contains("CA") && words.contains("ssl.ca.location"), "{words}");
    }
}
