//! Asks for the login by which the page makes changes, on a session of its own, and judges it.

use tokio::time::timeout;

use super::check::{CheckId, Diagnosis};
use super::{CHECK_TIMEOUT, Settings};
use crate::outbox::{Database, Error, Kind, Outbox, Result};
use crate::words::ident;

const CHECK: CheckId = CheckId::UiLogin;

pub async fn login(settings: &Settings) -> Diagnosis {
    let Some(page) = &settings.run.listeners.ui else {
        return CHECK.ok("there is no page (--ui-listen)");
    };
    let Some(operator) = &page.operator else {
        return CHECK.ok("the page changes nothing (--ui-database-url-file)");
    };
    let asked = timeout(CHECK_TIMEOUT, ask(operator, &settings.run.schema)).await;
    judged(asked.unwrap_or(Err(Error::Timeout(CHECK_TIMEOUT))))
}

async fn ask(operator: &Database, schema: &str) -> Result<(String, bool)> {
    let outbox = Outbox::unverified(operator, schema, CHECK_TIMEOUT).await?;
    outbox.operator_login().await
}

/// The name of the login, and whether it is an operator's.
fn judged(asked: Result<(String, bool)>) -> Diagnosis {
    const WHY: &str = "The page is shown, and each of its buttons fails.";
    match asked {
        Ok((login, true)) => CHECK.ok(format!("{login} has the role outbox_operator")),
        Ok((login, false)) => CHECK.problem(
            format!("{login}, the login of --ui-database-url-file, lacks the role outbox_operator"),
            WHY,
            format!("GRANT outbox_operator TO {}", ident(&login)),
        ),
        Err(error) if error.kind() == Kind::Transient => CHECK.unknown(error.to_string()),
        Err(error) => CHECK.problem(
            format!("the login of --ui-database-url-file is refused: {error}"),
            WHY,
            "Write the connection string of a login that works into the file; it is read again for each login",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    #[test]
    fn a_login_that_is_no_operators_is_a_problem_with_its_grant() {
        let judged = |is_operator| judged(Ok(("On Call".to_owned(), is_operator)));
        assert_eq!(judged(true).verdict, Verdict::Ok);
        let problem = judged(false);
        assert_eq!(problem.verdict, Verdict::Problem);
        assert_eq!(problem.fix.as_deref(), Some("GRANT outbox_operator TO \"On Call\""));
    }

    #[test]
    fn who_does_not_answer_is_told_from_who_refuses() {
        let silent = judged(Err(Error::Timeout(CHECK_TIMEOUT)));
        assert_eq!(silent.verdict, Verdict::Unknown);
        let refused = judged(Err(Error::Refused("wrong password".to_owned())));
        assert_eq!(refused.verdict, Verdict::Problem);
    }
}
