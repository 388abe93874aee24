//! Which certificates are in use, and when they expire.

use std::io;
use std::path::Path;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::Decode as _;

/// From when until when a certificate is valid, in time since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Validity {
    pub not_before: Duration,
    pub not_after: Duration,
}

/// The certificates by which this side and a server know each other. `None`: there is none. `Err`: why it cannot be read now.
#[derive(Debug, Default)]
pub struct InUse {
    /// The CA that has to have issued the server's; of several the one that expires last. Those of the system are not looked at.
    pub ca: Option<Result<Validity, String>>,
    /// What this side shows.
    pub client: Option<Result<Validity, String>>,
    /// What the server shows; of several servers the one that expires first.
    pub server: Option<Result<Validity, String>>,
}

impl Validity {
    /// Of the certificate that the owner of this PEM file shows, which is the first in it.
    pub fn of_file(file: &Path) -> Result<Self, String> {
        let all = super::certificates(file)?;
        let own = all.first().and_then(Validity::of);
        own.ok_or_else(|| format!("cannot read the first certificate in {}", file.display()))
    }

    /// Of the CA in this PEM file that expires last. The file is of use until then.
    pub fn of_cas(file: &Path) -> Result<Self, String> {
        let all = super::certificates(file)?;
        let last = all
            .iter()
            .filter_map(Validity::of)
            .max_by_key(|validity| validity.not_after);
        last.ok_or_else(|| format!("cannot read the certificates in {}", file.display()))
    }

    /// Of the certificate that expires first among those that servers show. Each shows its own first. `None`: no server was asked.
    pub fn of_servers(shown: Vec<io::Result<Vec<CertificateDer<'static>>>>) -> Option<Result<Self, String>> {
        let known = shown.into_iter().map(|shown| {
            let shown = shown.map_err(|error| error.to_string())?;
            let own = shown.first().and_then(Validity::of);
            own.ok_or_else(|| "cannot read the certificate of the server".to_owned())
        });
        known.fold(None, Validity::earlier)
    }

    /// The one that ends first. What one server does not tell, another one may.
    fn earlier(one: Option<Result<Self, String>>, other: Result<Self, String>) -> Option<Result<Self, String>> {
        match (one, other) {
            (Some(Ok(one)), Ok(other)) if one.not_after <= other.not_after => Some(Ok(one)),
            (Some(Ok(one)), Err(_)) => Some(Ok(one)),
            (_, other) => Some(other),
        }
    }

    fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let certificate = Certificate::from_der(certificate).ok()?;
        let validity = certificate.tbs_certificate.validity;
        Some(Validity {
            not_before: validity.not_before.to_unix_duration(),
            not_after: validity.not_after.to_unix_duration(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(at: u64) -> Validity {
        Validity {
            not_before: Duration::ZERO,
            not_after: Duration::from_secs(at),
        }
    }

    #[test]
    fn of_several_servers_the_first_to_expire_counts_and_a_silent_one_hides_no_other() {
        let earliest = |known: &[Result<u64, &str>]| {
            let known = known.iter().map(|known| known.map(ends).map_err(str::to_owned));
            known
                .fold(None, Validity::earlier)
                .map(|known| known.map(|validity| validity.not_after.as_secs()))
        };
        assert_eq!(earliest(&[]), None);
        assert_eq!(earliest(&[Ok(7), Ok(5), Ok(9)]), Some(Ok(5)));
        assert_eq!(earliest(&[Err("refused"), Ok(7)]), Some(Ok(7)));
        assert_eq!(earliest(&[Ok(7), Err("refused")]), Some(Ok(7)));
        assert_eq!(earliest(&[Err("refused"), Err("gone")]), Some(Err("gone".to_owned())));
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        let noise = CertificateDer::from(vec![48, 1, 0]);
        assert_eq!(Validity::of(&noise), None);
        let shown = vec![Ok(vec![noise]), Err(io::Error::other("refused"))];
        let known = Validity::of_servers(shown).expect("two were asked");
        assert_eq!(known, Err("refused".to_owned()));
    }
}
