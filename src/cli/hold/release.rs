//! `outboxd hold release`.

use std::collections::BTreeMap;

use clap::Args;

use crate::cli::Failure;
use crate::cli::operation::{CHUNK_ROWS, Matched, Operation, OperationArgs, Words, failure, open};
use crate::config::{Check, DatabaseArgs, HoldFilterArgs};
use crate::outbox::HeldUnit;

#[derive(Args, Debug)]
pub struct ReleaseArgs {
    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    filter: HoldFilterArgs,

    #[command(flatten)]
    operation: OperationArgs,
}

const RELEASE: Words = Words {
    command: "hold release",
    verb: "Release",
    done: "Released",
    nouns: ("hold", "holds"),
};

pub async fn release(args: &ReleaseArgs) -> Result<(), Failure> {
    let (database, filter, purpose) = Check::run(|check| {
        let filter = args.filter.filter(check);
        let purpose = args.operation.purpose(check, &filter);
        Some((args.database.database(check)?, filter, purpose))
    })?;
    let outbox = open(&database, &args.database.schema).await?;
    let held = outbox.hold_list(&filter).await.map_err(failure)?;
    let operation = Operation::new(&RELEASE, &args.operation, matched(&held));
    let change =
        async |held: &[HeldUnit], operation: Option<i64>| outbox.holds_release(held, &purpose, operation).await;
    operation.run(chunks(&held), change).await
}

fn matched(held: &[HeldUnit]) -> Matched {
    let mut topics = BTreeMap::new();
    for held in held {
        *topics.entry(held.topic.clone()).or_default() += held.holds.unsigned_abs();
    }
    Matched {
        topics: topics.into_iter().collect(),
    }
}

/// Chunks of at most [`CHUNK_ROWS`] holds, or of one unit that has more.
fn chunks(held: &[HeldUnit]) -> Vec<&[HeldUnit]> {
    let (mut chunks, mut rest) = (Vec::new(), held);
    while !rest.is_empty() {
        let mut holds = 0;
        let fits = rest.iter().take_while(|held| {
            holds += held.holds.unsigned_abs() as usize;
            holds <= CHUNK_ROWS
        });
        let (chunk, others) = rest.split_at(fits.count().max(1));
        chunks.push(chunk);
        rest = others;
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(topic: &str, holds: i64) -> HeldUnit {
        HeldUnit {
            topic: topic.to_owned(),
            unit: String::new(),
            holds,
            failures: 1,
            error: String::new(),
            head_id: None,
            age_seconds: 1.0,
            retry_in_seconds: None,
        }
    }

    #[test]
    fn a_transaction_changes_a_bounded_number_of_holds() {
        let all: Vec<HeldUnit> = (0..40).map(|n| held(&format!("t{}", n % 2), 64)).collect();
        let sizes: Vec<usize> = chunks(&all).iter().map(|chunk| chunk.len()).collect();
        assert_eq!(sizes, [15, 15, 10]);
        assert_eq!(chunks(&[held("t", 5_000), held("t", 1)]).len(), 2);
        assert_eq!(
            matched(&all).topics,
            [("t0".to_owned(), 1_280), ("t1".to_owned(), 1_280)]
        );
    }
}
