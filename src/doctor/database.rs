//! Asks PostgreSQL, one check after the other, in one session. Two more sessions are open for a moment.

use std::time::{Duration, Instant, SystemTime};

use tokio::time::timeout;

use super::check::{CheckId, Diagnosis};
use super::kafka::TOPICS_MAX;
use super::vacuum::IdleSessions;
use super::{CHECK_TIMEOUT, Settings, relay, schema, server, vacuum};
use crate::outbox::doctor::{Backends, LoginRights, Server, Transport, UsedTopic, backends};
use crate::outbox::schema::known_version;
use crate::outbox::{Database, Error, Kind, OnPublished, Outbox, Pooler, Result};

/// A statement is given up, and its session closed, before its check is.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(8);

/// So many pauses are named at most.
const PAUSES_MAX: i64 = 10;

pub struct Examined {
    pub diagnoses: Vec<Diagnosis>,
    /// The topics in use, or why they are not known.
    pub topics: std::result::Result<Vec<UsedTopic>, Diagnosis>,
}

pub async fn examine(settings: &Settings) -> Examined {
    let mut questions = match Questions::open(settings).await {
        Ok(questions) => questions,
        Err(problem) => return Examined::unreachable(problem),
    };
    questions.ask_about_the_session().await;
    let rights = questions.ask_about_the_login().await;
    questions.ask_about_the_server(rights).await;
    questions.ask_about_the_outbox().await;
    let topics = questions.ask_about_topics().await;
    Examined {
        diagnoses: questions.diagnoses,
        topics,
    }
}

impl Examined {
    /// Without a session nothing else can be checked.
    fn unreachable(problem: Diagnosis) -> Self {
        let of_database = CheckId::ALL.iter().filter(|check| {
            let is_answered_here = check.name().starts_with("db.") || check.name().starts_with("relay.");
            is_answered_here && **check != problem.id && **check != CheckId::RelayLease
        });
        let see = problem.id.name();
        let skipped = of_database.map(|check| check.skipped(format!("no session; see {see}")));
        Examined {
            diagnoses: skipped.chain([problem.clone()]).collect(),
            topics: Err(unknown_topics(&format!("see {see}"))),
        }
    }
}

const NO_SCHEMA: &str = "the schema cannot be used; see db.schema and db.grants";

fn unknown_topics(see: &str) -> Diagnosis {
    let reason = format!("which topics are in use is not known ({see}); name one with --topic");
    CheckId::KafkaTopicExists.skipped(reason)
}

/// A conversation with the server.
struct Questions<'a> {
    settings: &'a Settings,
    outbox: Outbox,
    /// How the server is reached: by a pooler also where that was not declared.
    database: Database,
    transport: Transport,
    server: Server,
    /// Without it the tables cannot be asked about.
    has_schema: bool,
    /// Nobody answers any more.
    is_silent: bool,
    diagnoses: Vec<Diagnosis>,
}

async fn bounded<T>(answer: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(CHECK_TIMEOUT, answer)
        .await
        .unwrap_or(Err(Error::Timeout(CHECK_TIMEOUT)))
}

/// Opens a session and learns what it is connected to.
async fn open(database: &Database, schema: &str) -> Result<(Outbox, Server)> {
    let opened = async {
        let outbox = Outbox::unverified(database, schema, STATEMENT_TIMEOUT).await?;
        let server = outbox.server().await?;
        Ok((outbox, server))
    };
    bounded(opened).await
}

impl<'a> Questions<'a> {
    /// Connects. A server that is reached only without the settings of a session is behind a pooler, and is asked through it.
    async fn open(settings: &'a Settings) -> std::result::Result<Self, Diagnosis> {
        let (declared, schema) = (&settings.run.database, &settings.run.schema);
        let began = Instant::now();
        let transport = declared.transport().map_err(|problem| server::not_readable(&problem))?;
        let pooled = Database {
            pooler: Pooler::Transaction,
            ..declared.clone()
        };
        let opened = open(declared, schema).await;
        let is_refused = opened.as_ref().is_err_and(Error::is_refusal_of_options);
        let (opened, database) = if is_refused {
            (open(&pooled, schema).await, pooled)
        } else {
            (opened, declared.clone())
        };
        let (outbox, server) = opened.map_err(|error| {
            let is_tls = error.is_about_certificates();
            server::not_connected(&error.to_string(), error.kind(), is_tls, &transport)
        })?;
        let mut diagnoses = vec![
            server::connected(&server, &transport, began.elapsed()),
            server::version(&server),
            server::primary(&server),
        ];
        diagnoses.extend(is_refused.then(server::options_refused));
        Ok(Questions {
            settings,
            outbox,
            database,
            transport,
            server,
            has_schema: false,
            is_silent: false,
            diagnoses,
        })
    }

    /// Waits for an answer. Without one, the checks that need it are unknown, and once nobody answers, later ones are not asked.
    async fn ask<T>(&mut self, checks: &[CheckId], answer: impl Future<Output = Result<T>>) -> Option<T> {
        if self.is_silent {
            let skipped = checks
                .iter()
                .map(|check| check.skipped("PostgreSQL no longer answered"));
            self.diagnoses.extend(skipped);
            return None;
        }
        match bounded(answer).await {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.is_silent = error.is_silence();
                let unknown = checks.iter().map(|check| check.unknown(error.to_string()));
                self.diagnoses.extend(unknown);
                None
            }
        }
    }

    /// The same for a check that judges one answer.
    async fn check<T>(
        &mut self,
        check: CheckId,
        answer: impl Future<Output = Result<T>>,
        judge: impl FnOnce(&Self, T) -> Diagnosis,
    ) {
        if let Some(answer) = self.ask(&[check], answer).await {
            let diagnosis = judge(self, answer);
            self.diagnoses.push(diagnosis);
        }
    }

    async fn ask_about_the_session(&mut self) {
        let outbox = self.outbox.clone();
        self.check(CheckId::DbTls, outbox.session_tls(), |this, session| {
            server::tls(&session, &this.transport)
        })
        .await;
        self.check(CheckId::DbClock, ahead_of_server(&outbox), |_, ahead| {
            server::clock(ahead)
        })
        .await;
    }

    async fn ask_about_the_login(&mut self) -> Option<LoginRights> {
        let outbox = self.outbox.clone();
        let checks = [CheckId::DbRole, CheckId::DbRowSecurity];
        let rights = self.ask(&checks, outbox.login_rights()).await;
        if let Some(rights) = &rights {
            let role = server::role(rights, &self.server);
            let row_security = server::row_security(rights, &self.server, &self.settings.run.schema);
            self.diagnoses.extend([role, row_security]);
        }
        self.check(CheckId::DbConnections, outbox.sessions_allowed(), |this, there| {
            let needed = this.settings.connections as i64;
            server::connections(&there, needed, &this.server, this.database.pooler)
        })
        .await;
        rights
    }

    async fn ask_about_the_server(&mut self, rights: Option<LoginRights>) {
        let (outbox, limit) = (self.outbox.clone(), self.settings.transaction_age_max);
        let database = self.database.clone();
        let declared = self.settings.run.database.pooler;
        let is_refused = database.pooler != declared;
        // One that refuses options has said what it is.
        let asked = if is_refused { &[][..] } else { &[CheckId::DbPooler][..] };
        let backends: Option<Backends> = self.ask(asked, backends(&database)).await;
        let pooler = backends.as_ref().filter(|_| !is_refused);
        self.diagnoses
            .extend(pooler.map(|backends| server::pooler(backends, declared)));
        let idle = CheckId::DbIdleInTransaction;
        self.check(idle, outbox.idle_sessions(), |this, sessions| {
            let idle = IdleSessions {
                sessions: &sessions,
                sees_all: rights.is_some_and(|rights| rights.sees_all_sessions),
                timeout_ms: backends.map(|backends| backends.idle_timeout_ms),
                database: &this.server.database,
                login: &this.server.login,
            };
            vacuum::idle_in_transaction(&idle, limit)
        })
        .await;
        let snapshots = outbox.old_snapshots();
        self.check(CheckId::DbOldSnapshot, snapshots, |_, old| {
            vacuum::old_snapshot(&old, limit)
        })
        .await;
        let prepared = outbox.prepared_transactions();
        self.check(CheckId::DbPreparedTransactions, prepared, |_, prepared| {
            vacuum::prepared_transactions(&prepared, limit)
        })
        .await;
        self.check(CheckId::DbSlots, outbox.slots(), |_, slots| vacuum::slots(&slots))
            .await;
        let durability = outbox.durability();
        self.check(CheckId::DbSynchronousCommit, durability, |_, durability| {
            schema::synchronous_commit(&durability)
        })
        .await;
    }

    /// Checks the schema and the privileges. Without them the tables are not asked about.
    async fn ask_about_the_outbox(&mut self) {
        let outbox = self.outbox.clone();
        let verified = async { Ok::<_, Error>(outbox.verify_schema().await) };
        if let Some(verified) = self.ask(&[CheckId::DbSchema], verified).await {
            let run = &self.settings.run;
            self.is_silent = verified.as_ref().is_err_and(Error::is_silence);
            self.has_schema = verified.is_ok();
            let diagnosis = schema::schema(&verified, &run.schema, known_version(), run.migrate);
            self.diagnoses.push(diagnosis);
        }
        self.ask_about_grants(&outbox).await;
        if self.has_schema {
            self.ask_about_tables(&outbox).await;
            return;
        }
        let tables = [
            CheckId::DbTrigger,
            CheckId::DbSequence,
            CheckId::DbTimeline,
            CheckId::DbHistoryDays,
            CheckId::DbAutovacuum,
            CheckId::DbOpenWriter,
        ];
        let skipped = tables.map(|check| check.skipped(NO_SCHEMA));
        self.diagnoses.extend(skipped);
    }

    async fn ask_about_tables(&mut self, outbox: &Outbox) {
        self.check(CheckId::DbTrigger, outbox.triggers(), |this, triggers| {
            schema::trigger(&triggers, &this.settings.run.schema)
        })
        .await;
        self.check(CheckId::DbSequence, outbox.id_sequence(), |this, ids| {
            schema::sequence(&ids, &this.settings.run.schema)
        })
        .await;
        self.check(CheckId::DbTimeline, outbox.timeline(), |_, timeline| {
            schema::timeline(timeline.as_deref())
        })
        .await;
        if self.settings.run.on_published == OnPublished::Archive {
            self.check(CheckId::DbHistoryDays, outbox.history_today(), |this, today| {
                schema::history_days(&today, &this.settings.run.schema)
            })
            .await;
        } else {
            let skipped = CheckId::DbHistoryDays.skipped("published rows are not archived (--on-published)");
            self.diagnoses.push(skipped);
        }
        self.check(CheckId::DbAutovacuum, outbox.autovacuum(), |this, state| {
            vacuum::autovacuum(&state, &this.settings.run.schema)
        })
        .await;
        self.check(CheckId::DbOpenWriter, outbox.open_writer(), |this, writer| {
            vacuum::open_writer(writer.as_ref(), this.settings.transaction_age_max)
        })
        .await;
    }

    /// A login that may not even use the schema gets an error for an answer, which says so.
    async fn ask_about_grants(&mut self, outbox: &Outbox) {
        let has_schema = self.has_schema;
        let missing = async {
            match outbox.missing_privileges().await {
                Err(error) if error.kind() == Kind::Permission => Ok(vec![format!("the schema ({error})")]),
                Err(error) if !has_schema && !error.is_silence() => Ok(Vec::new()),
                other => other,
            }
        };
        self.check(CheckId::DbGrants, missing, |this, missing| {
            if missing.is_empty() && !this.has_schema {
                return CheckId::DbGrants.skipped("without the schema there is nothing to grant; see db.schema");
            }
            schema::grants(&missing, &this.server.login)
        })
        .await;
    }

    async fn ask_about_topics(&mut self) -> std::result::Result<Vec<UsedTopic>, Diagnosis> {
        let of_workers = [CheckId::RelayWorkers, CheckId::RelayVersions];
        if !self.has_schema {
            self.diagnoses.extend(of_workers.map(|check| check.skipped(NO_SCHEMA)));
            self.diagnoses.push(CheckId::RelayPauses.skipped(NO_SCHEMA));
            return Err(unknown_topics("see db.schema"));
        }
        let outbox = self.outbox.clone();
        let used = async { Ok::<_, Error>(outbox.used_topics(TOPICS_MAX + 1).await) };
        let used = match self.ask(&[], used).await {
            None => Err(unknown_topics("PostgreSQL no longer answered")),
            Some(Ok(used)) => Ok(used),
            Some(Err(error)) => {
                self.is_silent = error.is_silence();
                Err(CheckId::KafkaTopicExists.unknown(format!("which topics are in use: {error}")))
            }
        };
        let pending = used
            .as_ref()
            .map_or(0, |used| used.iter().map(|used| used.pending).sum());
        let workers = async { Ok::<_, Error>((outbox.workers().await?, outbox.free_lanes().await?)) };
        if let Some((workers, free_lanes)) = self.ask(&of_workers, workers).await {
            let running = relay::workers(&workers, free_lanes, pending);
            let versions = relay::versions(&workers, env!("CARGO_PKG_VERSION"));
            self.diagnoses.extend([running, versions]);
        }
        let pauses = outbox.list_pauses(PAUSES_MAX);
        self.check(CheckId::RelayPauses, pauses, |this, pauses| {
            relay::pauses(&pauses, &this.settings.run.schema)
        })
        .await;
        used
    }
}

/// How many seconds the clock of this machine is ahead of the server's. The first answer takes longer than the second, because the
/// statement is prepared for it.
async fn ahead_of_server(outbox: &Outbox) -> Result<f64> {
    outbox.server_time().await?;
    let (before, asked) = (SystemTime::now(), Instant::now());
    let there = outbox.server_time().await?;
    let here = before + asked.elapsed() / 2;
    Ok(match here.duration_since(there) {
        Ok(ahead) => ahead.as_secs_f64(),
        Err(behind) => -behind.duration().as_secs_f64(),
    })
}
