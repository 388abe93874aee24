//! Who is logged in, the form that they have sent, and what both may do.

use std::time::SystemTime;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{Html, IntoResponse, Response};
use maud::{Markup, html};
use tokio::time::timeout;

use super::{ANSWER_TIMEOUT, Page, Refusal};
use crate::outbox::operator::audit::{AuditFilter, AuditedOperation, AuditedTransaction};
use crate::outbox::{self, Error, Kind, Outbox};
use crate::ui::fields::Fields;
use crate::ui::html::{self, Frame, Tab};
use crate::ui::login;
use crate::ui::rates::Counts;
use crate::ui::sample::Look;
use crate::ui::session::{Keys, Session};
use crate::ui::site::Origin;

/// A request of somebody who is logged in.
pub struct Visit {
    page: Page,
    keys: Keys,
    session: Session,
    pub fields: Fields,
}

impl FromRequestParts<Page> for Visit {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, page: &Page) -> Result<Self, Refusal> {
        let keys = page.keys()?;
        let origin = parts.extensions.get::<Origin>();
        let session = origin.and_then(|origin| login::session(&parts.headers, origin, &keys, SystemTime::now()));
        let Some(session) = session else {
            return Err(login::required(parts));
        };
        let visit = Visit {
            page: page.clone(),
            keys,
            session,
            fields: Fields::of_uri(&parts.uri),
        };
        visit.check(&visit.fields)?;
        Ok(visit)
    }
}

impl Visit {
    /// Refuses what no text in PostgreSQL can have.
    fn check(&self, fields: &Fields) -> Result<(), Refusal> {
        match fields.has_nul() {
            true => Err(self.refuse(StatusCode::BAD_REQUEST, "This is no text", "It has a NUL character.")),
            false => Ok(()),
        }
    }

    /// For what is shown.
    pub fn reader(&self) -> &Outbox {
        &self.page.0.reader
    }

    pub fn can_change(&self) -> bool {
        self.page.0.operator.is_some()
    }

    pub fn schema(&self) -> &str {
        &self.page.0.schema
    }

    /// The name of the worker that answers.
    pub fn worker(&self) -> &str {
        &self.page.0.worker
    }

    pub async fn look(&self) -> Look {
        self.page.0.sampler.look(self.reader()).await
    }

    /// What this process has published.
    pub fn own_counts(&self) -> Counts {
        self.page.0.sampler.own().clone()
    }

    /// The operations that match, the newest first. `None` without the operator's login, which alone may read the audit.
    pub async fn audit(&self, filter: &AuditFilter) -> Result<Option<Vec<AuditedOperation>>, Refusal> {
        let Some(operator) = &self.page.0.operator else {
            return Ok(None);
        };
        self.ask(operator.audit_operations(filter)).await.map(Some)
    }

    /// The first transactions of an operation.
    pub async fn audited(&self, operation: i64, limit: i64) -> Result<Vec<AuditedTransaction>, Refusal> {
        match &self.page.0.operator {
            Some(operator) => self.ask(operator.audit_transactions(operation, Some(limit))).await,
            None => Ok(Vec::new()),
        }
    }

    /// Waits for an answer of the database, for a bounded time.
    pub async fn ask<T>(&self, answer: impl Future<Output = outbox::Result<T>>) -> Result<T, Refusal> {
        let answer = timeout(ANSWER_TIMEOUT, answer).await;
        answer
            .unwrap_or(Err(Error::Timeout(ANSWER_TIMEOUT)))
            .map_err(|error| self.failed(&error))
    }

    /// A page that says what the database has answered.
    pub fn failed(&self, error: &Error) -> Refusal {
        let (status, title) = match error.kind() {
            Kind::Permission => (StatusCode::FORBIDDEN, "The login may not do this"),
            Kind::Setting => (StatusCode::BAD_REQUEST, "The database refuses this"),
            _ => (StatusCode::SERVICE_UNAVAILABLE, "The database does not answer"),
        };
        let needs = match error.kind() {
            Kind::Permission => ". The login of --ui-database-url-file needs the role outbox_operator",
            _ => "",
        };
        self.refuse(status, title, &format!("{error}{needs}"))
    }

    /// Before somebody is asked for what could not be done.
    pub fn require_operator(&self) -> Result<(), Refusal> {
        match self.can_change() {
            true => Ok(()),
            false => Err(self.read_only()),
        }
    }

    fn read_only(&self) -> Refusal {
        let text = "This page changes nothing, because outboxd was started without --ui-database-url-file. The commands do the same: \
                    outboxd dead, hold, pause and resume.";
        self.refuse(StatusCode::FORBIDDEN, "Read-only", text)
    }

    pub fn refuse(&self, status: StatusCode, title: &str, text: &str) -> Refusal {
        let content = html::message(title, text);
        (status, self.show(None, title, content)).into_response().into()
    }

    /// A page of this visit.
    pub fn show(&self, tab: Option<Tab>, title: &str, content: Markup) -> Response {
        let frame = Frame {
            title,
            tab,
            form_field: Some(self.form_field()),
            is_read_only: !self.can_change(),
            schema: self.schema(),
            worker: self.worker(),
        };
        Html(html::page(&frame, content).into_string()).into_response()
    }

    /// What each form carries that is posted.
    pub fn form_field(&self) -> Markup {
        html! { input type="hidden" name=(FORM_TOKEN) value=(self.session.form_token(&self.keys)); }
    }
}

const FORM_TOKEN: &str = "form-token";

/// A form that a page of this visit has sent.
pub struct Form {
    pub visit: Visit,
    pub fields: Fields,
}

impl FromRequest<Page> for Form {
    type Rejection = Refusal;

    async fn from_request(request: Request, page: &Page) -> Result<Self, Refusal> {
        let (mut parts, body) = request.into_parts();
        let visit = Visit::from_request_parts(&mut parts, page).await?;
        let body = Bytes::from_request(Request::from_parts(parts, body), page).await;
        let body = body.map_err(|rejection| visit.refuse(rejection.status(), "Too large", &rejection.body_text()))?;
        let fields = Fields::parse(&body);
        visit.check(&fields)?;
        let token = fields.get(FORM_TOKEN).unwrap_or_default();
        if !visit.session.is_form_token(token, &visit.keys) {
            let text = "It belongs to a session that has ended. Go back, load the page again, and repeat what you did.";
            return Err(visit.refuse(StatusCode::FORBIDDEN, "This form is no longer valid", text));
        }
        Ok(Form { visit, fields })
    }
}

/// A form that changes something, and the login by which it is changed.
pub struct Change {
    pub form: Form,
    operator: Outbox,
}

impl FromRequest<Page> for Change {
    type Rejection = Refusal;

    async fn from_request(request: Request, page: &Page) -> Result<Self, Refusal> {
        let form = Form::from_request(request, page).await?;
        match &page.0.operator {
            Some(operator) => Ok(Change {
                operator: operator.clone(),
                form,
            }),
            None => Err(form.visit.read_only()),
        }
    }
}

impl Change {
    pub fn operator(&self) -> &Outbox {
        &self.operator
    }
}
