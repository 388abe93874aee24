//! The page for the person on call: where it listens, who may see it, and by which login it makes changes.

use std::net::SocketAddr;
use std::path::PathBuf;

use axum::http::Uri;
use clap::Args;

use super::{Check, DatabaseArgs};
use crate::credentials::ui_token;
use crate::outbox::Database;

/// The flags of the page. Without `--ui-listen` there is none.
#[derive(Args, Clone, Debug, Default)]
pub struct UiArgs {
    /// Where the page for the person on call listens, e.g. 127.0.0.1:9091 [default: there is no page]
    #[arg(long, env = "OUTBOXD_UI_LISTEN", value_name = "ADDRESS")]
    pub ui_listen: Option<String>,

    /// File with the token to log in with, at least 16 bytes; a new one ends all sessions, without a restart
    #[arg(long, env = "OUTBOXD_UI_TOKEN_FILE", hide_env_values = true, value_name = "FILE")]
    pub ui_token_file: Option<PathBuf>,

    /// Where browsers find the page, e.g. https://outbox.example [default: at localhost and any IP address, by plain HTTP]
    #[arg(long, env = "OUTBOXD_UI_URL", value_name = "URL")]
    pub ui_url: Option<String>,

    /// File with the connection string of a login with the role outbox_operator; without it the page changes nothing
    #[arg(
        long,
        env = "OUTBOXD_UI_DATABASE_URL_FILE",
        hide_env_values = true,
        value_name = "FILE"
    )]
    pub ui_database_url_file: Option<PathBuf>,
}

/// The settings of the page, checked.
#[derive(Clone, Debug)]
pub struct Ui {
    pub listen: SocketAddr,
    /// It is read for each request.
    pub token_file: PathBuf,
    pub url: Option<PublicUrl>,
    /// `None` if the page changes nothing.
    pub operator: Option<Database>,
}

/// Where browsers find the page, behind whatever stands before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicUrl {
    /// By HTTPS.
    pub is_secure: bool,
    /// As browsers write it: in lower case, and without the port that the scheme implies.
    pub authority: String,
}

impl UiArgs {
    /// `None` if there is no page. `http` is where the probes listen.
    pub fn settings(&self, check: &mut Check, database: &DatabaseArgs, http: SocketAddr) -> Option<Ui> {
        let Some(listen) = &self.ui_listen else {
            self.check_unused(check);
            return None;
        };
        let listen = check.address("--ui-listen", listen);
        check.ensure(
            listen.port() == 0 || listen != http,
            "--ui-listen and --http-listen name the same address; the page needs a port of its own",
        );
        let url = self.ui_url.as_deref().map(PublicUrl::parse);
        let url = url.and_then(|url| check.ok(url));
        let operator = self.ui_database_url_file.as_deref();
        let operator = operator.and_then(|file| database.operator(check, "--ui-database-url-file", file));
        let Some(token_file) = &self.ui_token_file else {
            check.ensure(
                false,
                "--ui-token-file (OUTBOXD_UI_TOKEN_FILE) is missing: with which token do people log in to the page?",
            );
            return None;
        };
        check.ok(ui_token::read(token_file));
        Some(Ui {
            listen,
            token_file: token_file.clone(),
            url,
            operator,
        })
    }

    /// Somebody who gives one of the other flags expects a page.
    fn check_unused(&self, check: &mut Check) {
        let others = [
            ("--ui-token-file", self.ui_token_file.is_some()),
            ("--ui-url", self.ui_url.is_some()),
            ("--ui-database-url-file", self.ui_database_url_file.is_some()),
        ];
        for (flag, is_given) in others {
            check.ensure(
                !is_given,
                format!("{flag} is given, and --ui-listen (OUTBOXD_UI_LISTEN) is not: without it there is no page"),
            );
        }
    }
}

impl PublicUrl {
    fn parse(text: &str) -> Result<Self, String> {
        let problem = || format!("--ui-url {text:?} is not the address of a site; write e.g. https://outbox.example");
        let uri: Uri = text.parse().map_err(|_| problem())?;
        let is_secure = match uri.scheme_str().map(str::to_ascii_lowercase).as_deref() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(problem()),
        };
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let authority = authority.ok_or_else(problem)?.as_str().to_ascii_lowercase();
        if uri.path() != "/" || uri.query().is_some() {
            return Err(format!(
                "--ui-url {text:?} has a path; the page needs a host name of its own, because it is at / there"
            ));
        }
        let implied = if is_secure { ":443" } else { ":80" };
        Ok(PublicUrl {
            is_secure,
            authority: authority.strip_suffix(implied).unwrap_or(&authority).to_owned(),
        })
    }

    /// As browsers write it in the header Origin.
    pub fn origin(&self) -> String {
        let scheme = if self.is_secure { "https" } else { "http" };
        format!("{scheme}://{}", self.authority)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{self, ENOUGH};
    use super::super::{Config, Problems};
    use super::*;

    fn validate(args: &[&str]) -> Result<Config, Problems> {
        tests::validate(&[&ENOUGH, args].concat())
    }

    #[test]
    fn a_page_needs_a_token_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (token, url) = (folder.path().join("token"), folder.path().join("url"));
        std::fs::write(&token, "0123456789abcdef").expect("writable");
        std::fs::write(&url, "postgres://operator:s3cret@h/db").expect("writable");
        let (token, url) = (token.display().to_string(), url.display().to_string());
        assert!(validate(&[]).expect("valid").listeners.ui.is_none());
        let there = validate(&["--ui-listen", "127.0.0.1:9091", "--ui-token-file", &token]).expect("valid");
        let page = there.listeners.ui.expect("a page");
        assert!(page.operator.is_none() && page.url.is_none());
        let all = [
            "--ui-listen",
            "127.0.0.1:9091",
            "--ui-token-file",
            &token,
            "--ui-url",
            "https://outbox.example",
            "--ui-database-url-file",
            &url,
        ];
        let page = validate(&all).expect("valid").listeners.ui.expect("a page");
        assert!(!format!("{page:?}").contains("s3cret"), "{page:?}");
        assert!(page.operator.is_some() && page.url.is_some());
    }

    #[test]
    fn every_problem_of_the_page_is_listed() {
        let problems = |args: &[&str]| validate(args).map(drop).expect_err("problems").0;
        let listed = problems(&[
            "--ui-listen",
            "here",
            "--ui-url",
            "outbox.example",
            "--ui-database-url-file",
            "/nowhere/url",
        ]);
        for flag in ["--ui-listen", "--ui-url", "--ui-database-url-file", "--ui-token-file"] {
            let named = listed.iter().filter(|problem| problem.starts_with(flag)).count();
            assert_eq!(named, 1, "{flag}: {listed:?}");
        }
        let without = problems(&["--ui-token-file", "/nowhere/token"]);
        assert!(without.len() == 1 && without[0].contains("--ui-listen"), "{without:?}");
        let same = ["--ui-listen", "127.0.0.1:9090", "--http-listen", "127.0.0.1:9090"];
        let same = problems(&[&same[..], &["--ui-token-file", "/nowhere/token"]].concat());
        assert!(
            same.iter().any(|problem| problem.contains("the same address")),
            "{same:?}"
        );
    }

    #[test]
    fn an_address_is_compared_as_browsers_write_it() {
        let origin = |text| PublicUrl::parse(text).map(|url| url.origin());
        for (text, expected) in [
            ("https://outbox.example", "https://outbox.example"),
            ("HTTPS://Outbox.Example:443/", "https://outbox.example"),
            ("http://outbox.example:80", "http://outbox.example"),
            ("http://outbox.example:443", "http://outbox.example:443"),
            ("https://[::1]:9091", "https://[::1]:9091"),
        ] {
            assert_eq!(origin(text).as_deref(), Ok(expected));
        }
        for wrong in [
            "",
            "outbox.example",
            "ftp://outbox.example",
            "https://",
            "https://u:p@outbox.example",
            "https://outbox.example/page",
            "https://outbox.example/?x",
        ] {
            assert!(origin(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text: String) {
            let _ = PublicUrl::parse(&text);
        }
    }
}
