//! Judges the server and the way to it. Pure.

use std::time::Duration;

use super::check::{CheckId, Diagnosis};
use crate::outbox::doctor::{Backends, Connections, LoginRights, Server, SessionTls, Transport};
use crate::outbox::{Kind, Pooler};
use crate::tls::Verify;
use crate::words::{age, ident};

/// The oldest PostgreSQL that the migrations run on.
const VERSION_MIN: i32 = 150_000;

/// Clocks further apart than this confuse a comparison of logs.
const SKEW_ADVICE: Duration = Duration::from_secs(1);
/// Clocks further apart than this make certificates and tokens invalid.
const SKEW_PROBLEM: Duration = Duration::from_secs(60);

pub fn connected(server: &Server, transport: &Transport, took: Duration) -> Diagnosis {
    let Server {
        version,
        database,
        login,
        ..
    } = server;
    let (address, ms) = (&transport.address, took.as_millis());
    CheckId::DbConnect.ok(format!(
        "PostgreSQL {version} at {address}, database {database}, login {login}, answers in {ms} ms"
    ))
}

/// No session. `is_tls`: because of a certificate.
pub fn not_connected(error: &str, kind: Kind, is_tls: bool, transport: &Transport) -> Diagnosis {
    let address = &transport.address;
    let found = format!("no session at {address}: {error}");
    if is_tls {
        return CheckId::DbTls.problem(
            found,
            NO_SESSION,
            "Give the server's CA (--database-tls-ca), the host as it is in its certificate, and renew what has expired.",
        );
    }
    let fix = match kind {
        Kind::Login => {
            "Correct the login, its password or the database in --database-url, or let pg_hba.conf admit this host."
                .to_owned()
        }
        Kind::Setting => "Correct the setting that is named.".to_owned(),
        Kind::Transient | Kind::Permission | Kind::Schema => {
            let first = address.split(',').next().unwrap_or_default();
            let (host, port) = first.rsplit_once(':').unwrap_or((first, "5432"));
            format!("Is the server up, and is that its address? Try: pg_isready -h {host} -p {port}")
        }
    };
    CheckId::DbConnect.problem(found, NO_SESSION, fix)
}

/// The settings by which a session would be opened cannot be read.
pub fn not_readable(problem: &str) -> Diagnosis {
    CheckId::DbConnect.problem(problem, NO_SESSION, "Correct the setting that is named.")
}

const NO_SESSION: &str = "The relay can do nothing without PostgreSQL. Nothing else of it could be checked.";

pub fn tls(session: &SessionTls, transport: &Transport) -> Diagnosis {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    if !session.is_encrypted {
        let found = format!("the session to {} is not encrypted", transport.address);
        return if transport.is_local {
            CheckId::DbTls.ok(format!("{found}, and does not leave this machine"))
        } else {
            CheckId::DbTls.advice(
                found,
                "Anybody on the way can read and change messages.",
                "Add sslmode=verify-full to --database-url, and --database-tls-ca with the server's CA.",
            )
        };
    }
    let mut found = format!("{} with {}", text(&session.protocol), text(&session.cipher));
    if let Some(name) = &session.client_certificate {
        found = format!("{found}, client certificate {name}");
    }
    match transport.verify {
        Verify::ChainAndName => CheckId::DbTls.ok(format!("{found}; the server proves its identity")),
        Verify::Chain => CheckId::DbTls.ok(format!("{found}; the CA is verified, and the host's name is not")),
        Verify::Nothing => CheckId::DbTls.advice(
            format!("{found}; the server's certificate is not verified"),
            "Somebody who answers in the server's place would not be noticed.",
            "Add sslmode=verify-full to --database-url, and --database-tls-ca with the server's CA.",
        ),
    }
}

pub fn version(server: &Server) -> Diagnosis {
    let found = format!("PostgreSQL {}", server.version);
    if server.version_number >= VERSION_MIN {
        return CheckId::DbVersion.ok(found);
    }
    CheckId::DbVersion.problem(
        found,
        "The schema needs PostgreSQL 15 or newer.",
        "Upgrade the server, e.g. with pg_upgrade.",
    )
}

pub fn primary(server: &Server) -> Diagnosis {
    const WHY: &str = "The relay writes leases and marks, and ends with exit code 78 on a server that takes no writes.";
    if server.is_standby {
        return CheckId::DbPrimary.problem(
            "this server is a read-only standby",
            WHY,
            "Point --database-url at the primary, or name every server in it and add target_session_attrs=read-write.",
        );
    }
    if server.is_read_only {
        let (login, database) = (ident(&server.login), ident(&server.database));
        return CheckId::DbPrimary.problem(
            "sessions of this login begin read-only (default_transaction_read_only)",
            WHY,
            format!("ALTER ROLE {login} IN DATABASE {database} SET default_transaction_read_only = off"),
        );
    }
    CheckId::DbPrimary.ok("the server takes writes")
}

/// A server that was reached only without the settings with which a session begins is behind a transaction pooler.
pub fn options_refused() -> Diagnosis {
    undeclared_pooler("what answers at this address refuses the settings with which a session begins")
}

pub fn pooler(backends: &Backends, declared: Pooler) -> Diagnosis {
    match (backends.are_shared(), declared) {
        (true, Pooler::None) => undeclared_pooler("two sessions share one process of the server"),
        (true, Pooler::Transaction) => CheckId::DbPooler.ok("a transaction pooler, as declared"),
        (false, Pooler::None) => CheckId::DbPooler.ok("no transaction pooler, as declared"),
        (false, Pooler::Transaction) => CheckId::DbPooler.advice(
            "--database-pooler transaction, but no two sessions share a process of the server",
            "Without a pooler, statements could be prepared, which saves planning them each time.",
            "If there is no pooler, remove --database-pooler (OUTBOXD_DATABASE_POOLER).",
        ),
    }
}

fn undeclared_pooler(found: &str) -> Diagnosis {
    CheckId::DbPooler.problem(
        format!("{found}, so there is a transaction pooler, and --database-pooler is none"),
        "Settings and prepared statements of a session get lost behind it, and statements fail.",
        "Set --database-pooler transaction (OUTBOXD_DATABASE_POOLER=transaction), or connect to the server itself.",
    )
}

/// `ahead`: how many seconds the clock of this machine is ahead of the server's.
pub fn clock(ahead: f64) -> Diagnosis {
    let skew = ahead.abs();
    let side = if ahead < 0.0 { "behind" } else { "ahead of" };
    let found = format!("the clock of this machine is {} {side} the server's", age(skew));
    let fix = "Let both machines follow a time server, and look at: chronyc tracking";
    if skew > SKEW_PROBLEM.as_secs_f64() {
        let why = "Leases and record timestamps go by the server's clock and stay right, but certificates and tokens are judged by \
                   this one.";
        return CheckId::DbClock.problem(found, why, fix);
    }
    if skew > SKEW_ADVICE.as_secs_f64() {
        let why = "Logs of this machine cannot be compared with those of others. Leases go by the server's clock and stay right.";
        return CheckId::DbClock.advice(found, why, fix);
    }
    CheckId::DbClock.ok(found)
}

/// May one more relay that uses this many sessions start?
pub fn connections(there: &Connections, needed: i64, server: &Server, pooler: Pooler) -> Diagnosis {
    if pooler == Pooler::Transaction {
        return CheckId::DbConnections.skipped(format!(
            "the pooler decides how many sessions there are; one relay uses up to {needed} at once"
        ));
    }
    let (login, database) = (ident(&server.login), ident(&server.database));
    let of = |max: Option<i64>, used: i64| max.map_or(i64::MAX, |max| (max - used).max(0));
    let rooms = [
        (
            there.server_max - there.server_used,
            "max_connections of the server",
            format!("ALTER SYSTEM SET max_connections = {}", there.server_max + 2 * needed),
        ),
        (
            of(there.database_max, there.database_used),
            "the connection limit of the database",
            format!("ALTER DATABASE {database} CONNECTION LIMIT -1"),
        ),
        (
            of(there.login_max, there.login_used),
            "the connection limit of the login",
            format!("ALTER ROLE {login} CONNECTION LIMIT -1"),
        ),
    ];
    let (room, limit, fix) = rooms.into_iter().min_by_key(|(room, ..)| *room).unwrap_or_default();
    if room >= needed {
        return CheckId::DbConnections.ok(format!(
            "room for {room} more sessions; one relay uses up to {needed} at once"
        ));
    }
    CheckId::DbConnections.problem(
        format!("{limit} leaves {room} sessions, and one relay uses up to {needed} at once"),
        "A relay that gets no session cannot renew its lease, and loses its lanes.",
        format!("{fix} (or end sessions, or lower --tasks)"),
    )
}

pub fn role(rights: &LoginRights, server: &Server) -> Diagnosis {
    const WHY: &str = "A thief of this login can do more harm than a relay needs to be able to.";
    let login = &server.login;
    let found = match (rights.is_superuser, rights.is_owner) {
        (true, _) => format!("{login} is a superuser"),
        (false, true) => format!("{login} owns the outbox"),
        (false, false) => return CheckId::DbRole.ok(format!("{login} is neither superuser nor owner of the outbox")),
    };
    let fix = "Let the relay use a login of its own: CREATE ROLE relay LOGIN PASSWORD '…'; GRANT outbox_relay TO relay";
    CheckId::DbRole.advice(found, WHY, fix)
}

pub fn row_security(rights: &LoginRights, server: &Server, schema: &str) -> Diagnosis {
    if !rights.is_filtered {
        return CheckId::DbRowSecurity.ok("no row security hides messages from this login");
    }
    CheckId::DbRowSecurity.problem(
        format!("row security of {schema}.message applies to {}", server.login),
        "The relay publishes only the messages that a policy shows to it, and silently leaves the others.",
        format!("ALTER TABLE {schema}.message DISABLE ROW LEVEL SECURITY"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    fn server() -> Server {
        Server {
            version: "15.18".to_owned(),
            version_number: 150_018,
            database: "app".to_owned(),
            login: "Relay".to_owned(),
            is_standby: false,
            is_read_only: false,
        }
    }

    fn transport(is_local: bool, verify: Verify) -> Transport {
        Transport {
            address: "db:5432,other:5433".to_owned(),
            is_local,
            verify,
        }
    }

    #[test]
    fn a_version_that_lacks_what_the_schema_needs_is_a_problem() {
        let old = Server {
            version: "14.9".to_owned(),
            version_number: 140_009,
            ..server()
        };
        assert_eq!(version(&old).verdict, Verdict::Problem);
        assert_eq!(version(&server()).verdict, Verdict::Ok);
    }

    #[test]
    fn plain_text_is_fine_on_one_machine_only_and_a_certificate_is_to_be_verified() {
        let session = |is_encrypted| SessionTls {
            is_encrypted,
            protocol: Some("TLSv1.3".to_owned()),
            cipher: Some("TLS_AES_256_GCM_SHA384".to_owned()),
            client_certificate: None,
        };
        let judged = |is_encrypted, is_local, verify| tls(&session(is_encrypted), &transport(is_local, verify));
        assert_eq!(judged(false, true, Verify::Nothing).verdict, Verdict::Ok);
        assert_eq!(judged(false, false, Verify::Nothing).verdict, Verdict::Advice);
        assert_eq!(judged(true, true, Verify::Nothing).verdict, Verdict::Advice);
        for verify in [Verify::Chain, Verify::ChainAndName] {
            let verified = judged(true, false, verify);
            assert_eq!(verified.verdict, Verdict::Ok);
            assert!(verified.found.contains("TLSv1.3"), "{}", verified.found);
        }
    }

    #[test]
    fn a_clock_is_judged_by_its_distance_to_either_side() {
        for (ahead, verdict) in [
            (0.9, Verdict::Ok),
            (-1.5, Verdict::Advice),
            (59.0, Verdict::Advice),
            (-61.0, Verdict::Problem),
        ] {
            assert_eq!(clock(ahead).verdict, verdict, "{ahead}");
        }
        assert!(clock(-90.0).found.contains("1m 30s behind the server's"));
    }

    #[test]
    fn the_narrowest_limit_of_sessions_decides() {
        let there = Connections {
            server_max: 100,
            server_used: 50,
            database_max: None,
            database_used: 40,
            login_max: Some(20),
            login_used: 8,
        };
        let of = |needed, pooler| connections(&there, needed, &server(), pooler);
        assert_eq!(of(12, Pooler::None).verdict, Verdict::Ok);
        let narrow = of(13, Pooler::None);
        assert_eq!(narrow.verdict, Verdict::Problem);
        let fix = narrow.fix.expect("a fix");
        assert!(fix.contains("ALTER ROLE \"Relay\" CONNECTION LIMIT"), "{fix}");
        assert_eq!(of(99, Pooler::Transaction).verdict, Verdict::Skipped);
    }

    #[test]
    fn the_first_address_is_what_to_try() {
        let transport = transport(false, Verify::Nothing);
        let lost = not_connected("refused", Kind::Transient, false, &transport);
        assert!(lost.fix.is_some_and(|fix| fix.ends_with("pg_isready -h db -p 5432")));
        let login = not_connected("refused", Kind::Login, false, &transport);
        assert!(login.fix.is_some_and(|fix| fix.contains("pg_hba.conf")));
        let certificate = not_connected("it has expired", Kind::Login, true, &transport);
        assert_eq!(
            (certificate.id, certificate.verdict),
            (CheckId::DbTls, Verdict::Problem)
        );
    }
}
