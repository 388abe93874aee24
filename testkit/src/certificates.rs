//! Certificates for tests: a trusted CA, another one, and whatever these issue. All are files in PEM format.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use time::{Duration, OffsetDateTime};

/// Who issues a certificate.
#[derive(Clone, Copy, Debug, Default)]
pub enum Ca {
    /// The one in `ca.pem`.
    #[default]
    Trusted,
    /// The one in `other-ca.pem`.
    Other,
}

/// A certificate to issue, for a server or for a client. By default it is one that nothing is wrong with, for this machine.
#[derive(Clone, Debug)]
pub struct Leaf<'a> {
    pub hosts: &'a [&'a str],
    pub common_name: &'a str,
    pub expired: bool,
    pub ca: Ca,
}

impl Default for Leaf<'_> {
    fn default() -> Self {
        Leaf {
            hosts: &["localhost", "127.0.0.1", "::1"],
            common_name: "localhost",
            expired: false,
            ca: Ca::Trusted,
        }
    }
}

impl<'a> Leaf<'a> {
    /// A client certificate of this user.
    pub fn of(user: &'a str) -> Self {
        Leaf {
            common_name: user,
            ..Leaf::default()
        }
    }

    /// It is for another host than this machine.
    pub fn elsewhere(self) -> Self {
        Leaf {
            hosts: &["other.example"],
            ..self
        }
    }

    pub fn expired(self) -> Self {
        Leaf { expired: true, ..self }
    }

    /// The CA that nobody trusts has issued it.
    pub fn untrusted(self) -> Self {
        Leaf { ca: Ca::Other, ..self }
    }
}

/// A folder of certificates.
pub struct Certificates {
    folder: PathBuf,
    trusted: CertifiedIssuer<'static, KeyPair>,
    other: CertifiedIssuer<'static, KeyPair>,
}

impl Certificates {
    /// Writes `ca.pem` and `other-ca.pem` into the folder, which must exist.
    pub fn new(folder: &Path) -> Self {
        let certificates = Certificates {
            folder: folder.to_owned(),
            trusted: authority("outboxd test CA"),
            other: authority("outboxd other test CA"),
        };
        certificates.write("ca.pem", &certificates.trusted.pem());
        certificates.write("other-ca.pem", &certificates.other.pem());
        certificates
    }

    /// Writes `<name>.pem` and `<name>.key`, in place of earlier ones of this name.
    pub fn leaf(&self, name: &str, leaf: Leaf<'_>) {
        let hosts: Vec<String> = leaf.hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).expect("names of hosts");
        params.distinguished_name.push(DnType::CommonName, leaf.common_name);
        params.use_authority_key_identifier_extension = true;
        params.key_usages.push(KeyUsagePurpose::DigitalSignature);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let now = OffsetDateTime::now_utc();
        params.not_before = now - Duration::days(30);
        params.not_after = now + Duration::days(if leaf.expired { -1 } else { 30 });
        let issuer = match leaf.ca {
            Ca::Trusted => &self.trusted,
            Ca::Other => &self.other,
        };
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, issuer).expect("signed");
        // A reader in between gets a pair that does not match, as with any two files.
        self.write(&format!("{name}.key"), &key.serialize_pem());
        self.write(&format!("{name}.pem"), &certificate.pem());
    }

    /// Puts the content of one file into another, at once.
    pub fn copy(&self, from: &str, to: &str) {
        let text = fs::read_to_string(self.folder.join(from)).expect("there");
        self.write(to, &text);
    }

    /// A file in the folder, such as `ca.pem`.
    pub fn path(&self, file: &str) -> String {
        self.folder.join(file).display().to_string()
    }

    /// Replaces the file at once, so that no reader sees half of it.
    fn write(&self, file: &str, text: &str) {
        let (new, path) = (self.folder.join("new"), self.folder.join(file));
        fs::write(&new, text).expect("writable");
        let mode = if file.ends_with(".key") { 0o600 } else { 0o644 };
        fs::set_permissions(&new, fs::Permissions::from_mode(mode)).expect("ours");
        fs::rename(&new, &path).expect("the same folder");
    }
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let now = OffsetDateTime::now_utc();
    (params.not_before, params.not_after) = (now - Duration::days(60), now + Duration::days(60));
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signed by itself")
}
