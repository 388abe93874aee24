//! What the properties say about security: how connections are protected, who logs in and by what, and where its tokens come from.

use std::path::PathBuf;
use std::sync::Arc;

use super::properties::{Property, find, value};
use crate::credentials::oidc::ClientCredentials;
use crate::credentials::token::{COMMAND_FLAG, FILE_FLAG, TokenSource};
use crate::tls::{self, Verify};

/// The property that has the issuer's URL, and those that only say what to ask an issuer for. The client library is built without
/// an HTTP client and refuses most of them, so they are ours.
const ENDPOINT: &str = "sasl.oauthbearer.token.endpoint.url";
const OF_ISSUER: [&str; 7] = [
    "https.ca.location",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.grant.type",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.scope",
    ENDPOINT,
];

/// Each of these files is read when a client is built.
const FILES: [&str; 5] = [
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.crl.location",
    "ssl.keystore.location",
];

/// Each of these gives a client a certificate of its own.
const CERTIFICATES: [&str; 3] = [
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.keystore.location",
];

/// Who the client is to the brokers.
#[derive(Clone, Debug, PartialEq)]
enum Identity {
    Anonymous,
    Certificate,
    User { name: String, mechanism: String },
    Token,
}

#[derive(Clone, Debug)]
pub struct Security {
    identity: Identity,
    pub uses_tls: bool,
    /// The CA that brokers' certificates must be signed by; the system's if there is none.
    pub ca: Option<PathBuf>,
    /// What a broker's certificate must prove.
    pub verify: Verify,
    /// The client's certificate, if it is in a file in PEM format.
    pub certificate: Option<PathBuf>,
    /// Its key, if it is in a file without a passphrase.
    key: Option<PathBuf>,
}

impl Security {
    /// What these properties say, or why they cannot be used.
    pub fn of(own: &[Property]) -> Result<Self, String> {
        let protocol = value(own, "security.protocol").unwrap_or("plaintext").to_lowercase();
        let uses_tls = matches!(protocol.as_str(), "ssl" | "sasl_ssl");
        let identity = if protocol.starts_with("sasl_") {
            logged_in(own, &protocol)?
        } else if uses_tls && CERTIFICATES.iter().any(|name| value(own, name).is_some()) {
            Identity::Certificate
        } else {
            Identity::Anonymous
        };
        Ok(Security {
            identity,
            uses_tls,
            ca: value(own, "ssl.ca.location").map(PathBuf::from),
            verify: verify(own),
            certificate: value(own, "ssl.certificate.location").map(PathBuf::from),
            key: value(own, "ssl.key.location")
                .filter(|_| value(own, "ssl.key.password").is_none())
                .map(PathBuf::from),
        })
    }

    /// The client's certificate and its key, if both can be read from files.
    pub fn identity_files(&self) -> Option<tls::Identity> {
        Some(tls::Identity {
            certificate: self.certificate.clone()?,
            key: self.key.clone()?,
        })
    }

    pub fn uses_tokens(&self) -> bool {
        self.identity == Identity::Token
    }

    /// The SASL mechanism, if the client logs in by one.
    pub fn mechanism(&self) -> Option<&str> {
        match &self.identity {
            Identity::Anonymous | Identity::Certificate => None,
            Identity::User { mechanism, .. } => Some(mechanism),
            Identity::Token => Some("OAUTHBEARER"),
        }
    }

    pub fn has_certificate(&self) -> bool {
        self.identity == Identity::Certificate
    }

    /// Whom a broker must allow something, as its ACLs name it. A token's principal is known once there is one.
    pub fn principal(&self, of_token: Option<&str>) -> String {
        match &self.identity {
            Identity::Anonymous => "User:ANONYMOUS".to_owned(),
            Identity::Certificate => "the principal of its certificate".to_owned(),
            Identity::User { name, .. } => format!("User:{name}"),
            Identity::Token => match of_token {
                Some(name) => format!("User:{name}"),
                None => "the principal of its token".to_owned(),
            },
        }
    }

    /// What to look at if a login failed.
    pub fn login_advice(&self) -> String {
        match &self.identity {
            Identity::User { name, mechanism } => format!(
                "the login of {name} by {mechanism} failed; see sasl.mechanism, sasl.username and sasl.password, and what \
                 the broker knows of this user"
            ),
            Identity::Token => {
                "the login by a token failed; see where the token comes from, and whether brokers trust its issuer"
                    .to_owned()
            }
            Identity::Anonymous | Identity::Certificate => "the login failed; see security.protocol".to_owned(),
        }
    }
}

fn verify(own: &[Property]) -> Verify {
    let is_one_of = |name, values: &[&str]| {
        let given = value(own, name);
        given.is_some_and(|given| values.iter().any(|value| given.eq_ignore_ascii_case(value)))
    };
    if is_one_of("enable.ssl.certificate.verification", &["false", "f", "0"]) {
        Verify::Nothing
    } else if is_one_of("ssl.endpoint.identification.algorithm", &["none"]) {
        Verify::Chain
    } else {
        Verify::ChainAndName
    }
}

/// Who logs in by SASL.
fn logged_in(own: &[Property], protocol: &str) -> Result<Identity, String> {
    let given = find(own, "sasl.mechanisms");
    let mechanism = given.map_or("GSSAPI", Property::value);
    match mechanism {
        "GSSAPI" => {
            let begin = given.map_or_else(
                || format!("security.protocol={protocol} without sasl.mechanism means GSSAPI, which"),
                |property| format!("{}=GSSAPI", property.label()),
            );
            Err(format!(
                "{begin} is not supported: outboxd is built without Kerberos libraries. Set sasl.mechanism to SCRAM-SHA-512, \
                 PLAIN or OAUTHBEARER, or use a client certificate (security.protocol=ssl)"
            ))
        }
        "OAUTHBEARER" => Ok(Identity::Token),
        _ => Ok(Identity::User {
            name: value(own, "sasl.username").unwrap_or_default().to_owned(),
            mechanism: mechanism.to_owned(),
        }),
    }
}

/// The properties that the client library is given.
pub fn of_client(own: &[Property]) -> impl Iterator<Item = &Property> {
    let is_issuers = is_oidc(own);
    own.iter()
        .filter(move |property| !is_issuers || !OF_ISSUER.contains(&property.canonical()))
}

/// The files that the client library reads when a client is built.
pub fn files(own: &[Property]) -> impl Iterator<Item = PathBuf> {
    FILES.iter().filter_map(move |name| value(own, name)).map(PathBuf::from)
}

fn is_oidc(own: &[Property]) -> bool {
    value(own, "sasl.oauthbearer.method").is_some_and(|method| method.eq_ignore_ascii_case("oidc"))
}

/// Where tokens come from: from the source that a flag names, or from an issuer. With OAUTHBEARER there must be exactly one
/// source, and otherwise none.
pub fn token_source(
    security: &Security,
    own: &[Property],
    by_flags: &[TokenSource],
) -> Result<Option<TokenSource>, Vec<String>> {
    let names = by_flags.iter().map(flag_of);
    let names: Vec<&str> = names
        .chain(is_oidc(own).then_some("sasl.oauthbearer.method=oidc"))
        .collect();
    match (security.uses_tokens(), names.as_slice()) {
        (false, []) => Ok(None),
        (false, names) => Err(vec![format!(
            "{} has no effect: tokens are for security.protocol=sasl_ssl with sasl.mechanism=OAUTHBEARER",
            names.join(" and ")
        )]),
        (true, []) => Err(vec![format!(
            "sasl.mechanism=OAUTHBEARER needs tokens: give {FILE_FLAG}, {COMMAND_FLAG}, or sasl.oauthbearer.method=oidc with \
             the properties of the issuer"
        )]),
        (true, [_]) => match by_flags.first() {
            Some(source) => Ok(Some(source.clone())),
            None => Ok(Some(TokenSource::Issuer(Arc::new(issuer(own)?)))),
        },
        (true, names) => Err(vec![format!("give one source of tokens, not {}", names.join(" and "))]),
    }
}

fn flag_of(source: &TokenSource) -> &'static str {
    match source {
        TokenSource::File(_) => FILE_FLAG,
        TokenSource::Command(_) => COMMAND_FLAG,
        TokenSource::Issuer(_) => "sasl.oauthbearer.method=oidc",
    }
}

/// The issuer that the properties describe, by the client library's own names.
fn issuer(own: &[Property]) -> Result<ClientCredentials, Vec<String>> {
    let mut problems = Vec::new();
    if let Some(grant) = find(own, "sasl.oauthbearer.grant.type")
        && grant.value() != "client_credentials"
    {
        problems.push(format!(
            "{} is not supported: tokens are asked for by client_credentials",
            grant.label()
        ));
    }
    let mut needed = |name: &'static str| {
        let property = find(own, name).filter(|property| !property.value().is_empty());
        if property.is_none() {
            problems.push(format!("sasl.oauthbearer.method=oidc needs {name}"));
        }
        property
    };
    let (endpoint, id, secret) = (
        needed(ENDPOINT),
        needed("sasl.oauthbearer.client.id"),
        needed("sasl.oauthbearer.client.secret"),
    );
    let (Some(endpoint), Some(id), Some(secret)) = (endpoint, id, secret) else {
        return Err(problems);
    };
    match ClientCredentials::new(endpoint.value(), id.value(), secret.value.clone()) {
        Ok(issuer) if problems.is_empty() => Ok(issuer
            .scopes(value(own, "sasl.oauthbearer.scope").unwrap_or_default())
            .ca(value(own, "https.ca.location").map(PathBuf::from))),
        Ok(_) => Err(problems),
        Err(problem) => {
            problems.push(format!("{} {problem}", endpoint.label()));
            Err(problems)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(pairs: &[(&str, &str)]) -> Vec<Property> {
        pairs.iter().map(|(name, value)| Property::flag(name, value)).collect()
    }

    fn security(pairs: &[(&str, &str)]) -> Security {
        Security::of(&own(pairs)).expect("valid")
    }

    const SASL: (&str, &str) = ("security.protocol", "SASL_SSL");
    const OAUTH: (&str, &str) = ("sasl.mechanism", "OAUTHBEARER");
    const CERTIFICATE: (&str, &str) = ("ssl.certificate.location", "relay.pem");

    #[test]
    fn gssapi_is_refused_also_where_it_is_the_default() {
        for (pairs, begin) in [
            (
                &[SASL, ("sasl.mechanism", "GSSAPI")][..],
                "--kafka-property sasl.mechanism=GSSAPI is",
            ),
            (
                &[SASL, ("sasl.mechanisms", "GSSAPI")],
                "--kafka-property sasl.mechanisms=GSSAPI is",
            ),
            (
                &[SASL],
                "security.protocol=sasl_ssl without sasl.mechanism means GSSAPI",
            ),
            (
                &[("security.protocol", "sasl_plaintext")],
                "security.protocol=sasl_plaintext without",
            ),
        ] {
            let problem = Security::of(&own(pairs)).expect_err(begin);
            assert!(problem.starts_with(begin), "{problem}");
            assert!(
                problem.contains("Kerberos") && problem.contains("SCRAM-SHA-512"),
                "{problem}"
            );
        }
        assert!(
            Security::of(&own(&[("sasl.mechanism", "GSSAPI")])).is_ok(),
            "nobody logs in"
        );
    }

    #[test]
    fn acls_name_the_principal() {
        let user = [SASL, ("sasl.mechanism", "PLAIN"), ("sasl.username", "relay")];
        for (pairs, principal) in [
            (&[][..], "User:ANONYMOUS"),
            (&[("security.protocol", "ssl")], "User:ANONYMOUS"),
            (
                &[("security.protocol", "ssl"), CERTIFICATE],
                "the principal of its certificate",
            ),
            (&[CERTIFICATE], "User:ANONYMOUS"),
            (&user, "User:relay"),
            (&[SASL, OAUTH], "the principal of its token"),
        ] {
            assert_eq!(security(pairs).principal(None), principal, "{pairs:?}");
        }
        assert_eq!(security(&[SASL, OAUTH]).principal(Some("relay")), "User:relay");
    }

    #[test]
    fn tls_and_the_check_of_names_are_seen() {
        let tls = security(&[("security.protocol", "ssl"), ("ssl.ca.location", "ca.pem")]);
        assert!(tls.uses_tls && tls.verify == Verify::ChainAndName);
        assert_eq!(tls.ca, Some("ca.pem".into()));
        assert!(!security(&[("security.protocol", "plaintext")]).uses_tls);
        let unchecked = security(&[SASL, OAUTH, ("ssl.endpoint.identification.algorithm", "none")]);
        assert!(unchecked.uses_tls && unchecked.verify == Verify::Chain);
    }

    const ISSUER: [(&str, &str); 6] = [
        SASL,
        OAUTH,
        ("sasl.oauthbearer.method", "OIDC"),
        ("sasl.oauthbearer.client.id", "relay"),
        ("sasl.oauthbearer.client.secret", "s3cret"),
        ("sasl.oauthbearer.token.endpoint.url", "https://issuer.example/token"),
    ];

    fn source(pairs: &[(&str, &str)], by_flags: &[TokenSource]) -> Result<Option<TokenSource>, Vec<String>> {
        token_source(&security(pairs), &own(pairs), by_flags)
    }

    #[test]
    fn there_is_exactly_one_source_of_tokens_where_one_is_needed() {
        let file = TokenSource::File("token".into());
        let both = [file.clone(), TokenSource::File("other".into())];
        assert!(matches!(source(&[], &[]), Ok(None)));
        assert!(matches!(
            source(&[SASL, OAUTH], &both[..1]),
            Ok(Some(TokenSource::File(_)))
        ));
        assert!(matches!(source(&ISSUER, &[]), Ok(Some(TokenSource::Issuer(_)))));
        for (pairs, by_flags, words) in [
            (&[SASL, OAUTH][..], &[][..], "needs tokens"),
            (&[], &both[..1], "no effect"),
            (&[ISSUER[2]], &[], "no effect"),
            (&[SASL, OAUTH], &both, "one source of tokens"),
            (&ISSUER, &both[..1], "one source of tokens"),
        ] {
            let problems = source(pairs, by_flags).map(drop).expect_err(words);
            assert!(problems.len() == 1 && problems[0].contains(words), "{problems:?}");
        }
    }

    #[test]
    fn what_an_issuer_lacks_is_listed() {
        let problems = source(&ISSUER[..3], &[]).map(drop).expect_err("incomplete");
        assert_eq!(problems.len(), 3, "{problems:?}");
        let mut pairs = ISSUER.to_vec();
        pairs[5].1 = "http://issuer.example/token";
        pairs.push((
            "sasl.oauthbearer.grant.type",
            "urn:ietf:params:oauth:grant-type:jwt-bearer",
        ));
        let problems = source(&pairs, &[]).map(drop).expect_err("two problems");
        assert!(problems[0].contains("client_credentials"), "{problems:?}");
        assert!(problems[1].contains("https://"), "{problems:?}");
        assert!(!format!("{problems:?}").contains("s3cret"));
    }

    #[test]
    fn what_describes_the_issuer_is_kept_from_the_client_library() {
        let given = own(&ISSUER);
        let left: Vec<&str> = of_client(&given).map(|property| property.name.as_str()).collect();
        assert_eq!(left, ["security.protocol", "sasl.mechanism"]);
        let file = own(&[SASL, OAUTH, ("sasl.oauthbearer.method", "default")]);
        assert_eq!(of_client(&file).count(), 3, "not about an issuer");
    }
}
