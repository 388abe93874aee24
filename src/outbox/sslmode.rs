//! What `sslmode` and the TLS files demand of a connection, with the meaning that libpq gives them.
//!
//! Two things are stricter than in libpq. A CA without `sslmode` means verify-full, where libpq would accept plain text. And
//! verify-ca needs a CA of one's own, because the public CAs issue certificates to everybody.

use std::path::{Path, PathBuf};

use tokio_postgres::config::SslMode;

use super::url_params::TlsParams;
use crate::tls::{Identity, Settings, Verify};

/// The TLS files that flags name.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    pub ca: Option<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

/// The CAs of the system, where the name of a file is expected.
const SYSTEM: &str = "system";

/// How the client library shall connect (`None`: as the connection string says), and what TLS must prove then.
pub fn read(params: TlsParams, files: &TlsFiles) -> Result<(Option<SslMode>, Settings), String> {
    let ca = one_of("sslrootcert", params.sslrootcert, "--database-tls-ca", &files.ca)?;
    let certificate = one_of("sslcert", params.sslcert, "--database-tls-cert", &files.certificate)?;
    let key = one_of("sslkey", params.sslkey, "--database-tls-key", &files.key)?;
    let identity = identity(certificate, key)?;
    let has_files = ca.is_some() || identity.is_some();
    let (mode, verify) = demands(params.sslmode.as_deref(), ca.as_deref(), has_files)?;
    let settings = Settings {
        verify,
        ca: ca.filter(|file| !is_system(file)),
        identity,
    };
    Ok((mode, settings))
}

fn is_system(file: &Path) -> bool {
    file.as_os_str() == SYSTEM
}

fn demands(mode: Option<&str>, ca: Option<&Path>, has_files: bool) -> Result<(Option<SslMode>, Verify), String> {
    let required = |verify| Ok((Some(SslMode::Require), verify));
    let mode = match mode {
        None if ca.is_some() => "verify-full",
        None => return Ok((None, Verify::Nothing)),
        Some(mode) => mode,
    };
    match mode {
        "disable" if has_files => Err(plain_text(mode)),
        "disable" => Ok((Some(SslMode::Disable), Verify::Nothing)),
        "allow" | "prefer" if ca.is_some() => Err(plain_text(mode)),
        "allow" | "prefer" => Ok((Some(SslMode::Prefer), Verify::Nothing)),
        "verify-full" => required(Verify::ChainAndName),
        "require" | "verify-ca" if ca.is_some_and(is_system) => Err(format!(
            "sslmode={mode} with the CAs of the system accepts everybody's certificate; write sslmode=verify-full"
        )),
        "require" if ca.is_none() => required(Verify::Nothing),
        "require" | "verify-ca" if ca.is_some() => required(Verify::Chain),
        "verify-ca" => Err(
            "sslmode=verify-ca needs the CA of the server (sslrootcert or --database-tls-ca); with the CAs of the \
             system, write sslmode=verify-full"
                .to_owned(),
        ),
        _ => Err("its sslmode is none of disable, allow, prefer, require, verify-ca and verify-full".to_owned()),
    }
}

fn plain_text(mode: &str) -> String {
    format!(
        "sslmode={mode} permits plain text, but there is a CA or a client certificate, which needs TLS; write \
         sslmode=verify-full"
    )
}

fn identity(certificate: Option<PathBuf>, key: Option<PathBuf>) -> Result<Option<Identity>, String> {
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Some(Identity { certificate, key })),
        (None, None) => Ok(None),
        (Some(_), None) => Err("a client certificate needs its key: sslkey or --database-tls-key".to_owned()),
        (None, Some(_)) => Err("the key needs its client certificate: sslcert or --database-tls-cert".to_owned()),
    }
}

/// A file that either the connection string or a flag names.
fn one_of(name: &str, param: Option<String>, flag: &str, file: &Option<PathBuf>) -> Result<Option<PathBuf>, String> {
    let param = param.filter(|path| !path.is_empty()).map(PathBuf::from);
    match (param, file) {
        (Some(_), Some(_)) => Err(format!("it has {name}, and {flag} is given, too; remove one")),
        (param, file) => Ok(param.or_else(|| file.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(sslmode: &str, sslrootcert: &str) -> TlsParams {
        let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        TlsParams {
            sslmode: given(sslmode),
            sslrootcert: given(sslrootcert),
            ..TlsParams::default()
        }
    }

    #[test]
    fn each_mode_verifies_what_it_verifies_in_libpq() {
        use SslMode::{Disable, Prefer, Require};
        use Verify::{Chain, ChainAndName, Nothing};
        for (mode, ca, expected) in [
            ("", "", (None, Nothing)),
            ("disable", "", (Some(Disable), Nothing)),
            ("allow", "", (Some(Prefer), Nothing)),
            ("prefer", "", (Some(Prefer), Nothing)),
            ("require", "", (Some(Require), Nothing)),
            ("require", "ca.pem", (Some(Require), Chain)),
            ("verify-ca", "ca.pem", (Some(Require), Chain)),
            ("verify-full", "ca.pem", (Some(Require), ChainAndName)),
            ("verify-full", "", (Some(Require), ChainAndName)),
            ("verify-full", "system", (Some(Require), ChainAndName)),
            ("", "ca.pem", (Some(Require), ChainAndName)),
            ("", "system", (Some(Require), ChainAndName)),
        ] {
            let (found, settings) = read(params(mode, ca), &TlsFiles::default()).expect("valid");
            assert_eq!((found, settings.verify), expected, "sslmode={mode} sslrootcert={ca}");
            assert_eq!(settings.ca, (ca == "ca.pem").then(|| "ca.pem".into()));
        }
    }

    #[test]
    fn a_flag_is_the_same_as_its_parameter() {
        let files = TlsFiles {
            ca: Some("ca.pem".into()),
            ..TlsFiles::default()
        };
        for (mode, verify) in [("", Verify::ChainAndName), ("require", Verify::Chain)] {
            let (_, settings) = read(params(mode, ""), &files).expect("valid");
            assert_eq!(
                (settings.verify, settings.ca),
                (verify, Some("ca.pem".into())),
                "{mode}"
            );
        }
        assert!(read(params("", "other.pem"), &files).is_err(), "two CAs");
    }

    #[test]
    fn what_would_verify_less_than_it_seems_is_refused() {
        for (mode, ca, word) in [
            ("disable", "ca.pem", "permits plain text"),
            ("allow", "ca.pem", "permits plain text"),
            ("prefer", "ca.pem", "permits plain text"),
            ("require", "system", "everybody's certificate"),
            ("verify-ca", "system", "everybody's certificate"),
            ("verify-ca", "", "needs the CA"),
            ("verify_full", "", "none of disable"),
        ] {
            let problem = read(params(mode, ca), &TlsFiles::default()).expect_err(mode);
            assert!(problem.contains(word), "{mode} {ca}: {problem}");
        }
    }

    #[test]
    fn a_certificate_and_its_key_belong_together() {
        let with = |certificate: Option<&str>, key: Option<&str>, mode: &str| {
            let files = TlsFiles {
                ca: None,
                certificate: certificate.map(PathBuf::from),
                key: key.map(PathBuf::from),
            };
            read(params(mode, ""), &files)
        };
        let (_, settings) = with(Some("c"), Some("k"), "require").expect("both");
        assert!(settings.identity.is_some());
        assert!(
            with(Some("c"), None, "")
                .expect_err("no key")
                .contains("--database-tls-key")
        );
        assert!(
            with(None, Some("k"), "")
                .expect_err("no certificate")
                .contains("--database-tls-cert")
        );
        assert!(
            with(Some("c"), Some("k"), "disable")
                .expect_err("no TLS")
                .contains("plain text")
        );
    }
}
