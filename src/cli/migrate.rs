//! `outboxd migrate`.

use clap::Args;

use super::Failure;
use crate::config::{Check, DatabaseArgs};
use crate::outbox::{connect, schema::apply};

#[derive(Args, Debug)]
pub struct MigrateArgs {
    #[command(flatten)]
    database: DatabaseArgs,
}

pub async fn migrate(args: &MigrateArgs) -> Result<(), Failure> {
    let database = Check::run(|check| {
        args.database.check_migration(check);
        args.database.database(check)
    })?;
    let schema = &args.database.schema;
    let mut client = connect(&database).await?;
    let applied = apply(&mut client, schema).await?;
    if applied.is_empty() {
        println!("The schema {schema} is up to date.");
    } else {
        let versions: Vec<String> = applied.iter().map(|version| format!("V{version}")).collect();
        println!("Applied {} to the schema {schema}.", versions.join(", "));
    }
    Ok(())
}
