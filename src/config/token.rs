//! Where the tokens come from that log in to Kafka.

use std::path::PathBuf;

use clap::Args;
use secrecy::{ExposeSecret as _, SecretString};

use super::Check;
use crate::credentials::command::CommandLine;
use crate::credentials::token::{COMMAND_FLAG, TokenSource};

#[derive(Args, Clone, Debug, Default)]
pub struct TokenArgs {
    /// File with the token for sasl.mechanism=OAUTHBEARER, by itself or in JSON; read again every minute
    #[arg(long, env = "OUTBOXD_KAFKA_TOKEN_FILE", hide_env_values = true, value_name = "FILE")]
    pub kafka_token_file: Option<PathBuf>,

    /// Command that prints that token, run without a shell; run again before the token ends
    #[arg(
        long,
        env = "OUTBOXD_KAFKA_TOKEN_COMMAND",
        hide_env_values = true,
        value_name = "COMMAND"
    )]
    pub kafka_token_command: Option<SecretString>,
}

impl TokenArgs {
    /// The sources that the flags name. `None` if one of them is not valid.
    pub fn sources(&self, check: &mut Check) -> Option<Vec<TokenSource>> {
        let file = self.kafka_token_file.clone().map(TokenSource::File);
        let mut sources: Vec<TokenSource> = file.into_iter().collect();
        if let Some(text) = &self.kafka_token_command {
            let command = check.ok(CommandLine::parse(COMMAND_FLAG, text.expose_secret()))?;
            sources.push(TokenSource::Command(command));
        }
        Some(sources)
    }
}
