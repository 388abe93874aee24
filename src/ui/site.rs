//! Under which addresses the page answers. A site of somebody else can let its name resolve to our address, and would be of the same
//! origin then: so a name must be known, and only addresses and localhost, which no foreign name server answers for, need not be.

use std::net::IpAddr;

use axum::http::uri::Authority;

use crate::config::PublicUrl;

#[derive(Debug)]
pub struct Site {
    pub url: Option<PublicUrl>,
}

/// Where a request was sent to, as a browser sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// As in the header Origin.
    pub text: String,
    /// By HTTPS, so cookies are for HTTPS alone.
    pub is_secure: bool,
}

impl Site {
    /// The origin of a page with this header Host. `None` if no page is at that address.
    pub fn origin(&self, host: &str) -> Option<Origin> {
        let host = host.to_ascii_lowercase();
        if let Some(url) = self.url.as_ref().filter(|url| url.authority == host) {
            return Some(Origin {
                text: url.origin(),
                is_secure: url.is_secure,
            });
        }
        is_address(&host).then(|| Origin {
            text: format!("http://{host}"),
            is_secure: false,
        })
    }
}

/// Is it localhost or an IP address, with any port?
fn is_address(host: &str) -> bool {
    let Some(authority) = host.parse::<Authority>().ok().filter(|_| !host.contains('@')) else {
        return false;
    };
    let name = authority.host();
    let port = host.strip_prefix(name).unwrap_or(host);
    let is_port = |port: &str| port.parse::<u16>().is_ok();
    if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
        return false;
    }
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    name == "localhost" || address.unwrap_or(name).parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn site(url: Option<&str>) -> Site {
        Site {
            url: url.map(|authority| PublicUrl {
                is_secure: true,
                authority: authority.to_owned(),
            }),
        }
    }

    #[test]
    fn a_name_must_be_known_and_an_address_need_not() {
        let (unnamed, named) = (site(None), site(Some("outbox.example")));
        for host in [
            "localhost",
            "localhost:8080",
            "127.0.0.1:9091",
            "10.1.2.3",
            "[::1]:9091",
            "LOCALHOST:1",
        ] {
            for site in [&unnamed, &named] {
                let origin = site.origin(host).expect(host);
                let expected = format!("http://{}", host.to_lowercase());
                assert!(origin.text == expected && !origin.is_secure, "{origin:?}");
            }
        }
        let origin = named.origin("Outbox.Example").expect("its name");
        assert!(
            origin.text == "https://outbox.example" && origin.is_secure,
            "{origin:?}"
        );
        assert_eq!(unnamed.origin("outbox.example"), None);
        for foreign in [
            "",
            "evil.example",
            "outbox.example.evil.example",
            "evil.outbox.example",
            "outbox.example:9091",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "evil.example@127.0.0.1",
            "localhost:x",
            "[::1",
            "localhost evil.example",
        ] {
            assert_eq!(named.origin(foreign), None, "{foreign}");
        }
    }

    proptest! {
        #[test]
        fn no_name_of_others_is_an_address(name in "[a-z][a-z0-9-]{0,10}(\\.[a-z][a-z0-9-]{0,10}){1,3}", port: u16) {
            prop_assert_eq!(site(None).origin(&format!("{name}:{port}")), None);
        }
    }
}
