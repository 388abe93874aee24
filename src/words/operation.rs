//! How an operation of an operator is spoken of, by commands and by the page.

use super::counted;

/// The words for one kind of operation.
#[derive(Debug)]
pub struct Words {
    /// As the command line and the audit name it.
    pub command: &'static str,
    /// What it does, as a question begins: "Send again".
    pub verb: &'static str,
    /// What it did: "Sent again".
    pub done: &'static str,
    /// What it changes, one and many.
    pub nouns: (&'static str, &'static str),
}

const DEAD_LETTERS: (&str, &str) = ("dead letter", "dead letters");

pub const REDRIVE: Words = Words {
    command: "dead redrive",
    verb: "Send again",
    done: "Sent again",
    nouns: DEAD_LETTERS,
};

pub const CORRECT: Words = Words {
    command: "dead correct",
    verb: "Correct and send again",
    done: "Corrected and sent again",
    nouns: DEAD_LETTERS,
};

pub const DISCARD: Words = Words {
    command: "dead discard",
    verb: "Remove for good",
    done: "Removed for good",
    nouns: DEAD_LETTERS,
};

pub const RELEASE: Words = Words {
    command: "hold release",
    verb: "Release",
    done: "Released",
    nouns: ("hold", "holds"),
};

/// What an operation changes: how many rows of each topic.
#[derive(Clone, Debug, Default)]
pub struct Matched {
    pub topics: Vec<(String, u64)>,
}

impl Matched {
    pub fn rows(&self) -> u64 {
        self.topics.iter().map(|(_, rows)| rows).sum()
    }

    /// "1,234 dead letters of 2 topics"
    pub fn describe(&self, words: &Words) -> String {
        let (one, many) = words.nouns;
        let topics = counted(self.topics.len() as u64, "topic", "topics");
        format!("{} of {topics}", counted(self.rows(), one, many))
    }

    /// The topics, those with the most rows first.
    pub fn by_rows(&self) -> Vec<&(String, u64)> {
        let mut topics: Vec<&(String, u64)> = self.topics.iter().collect();
        topics.sort_by_key(|(_, rows)| std::cmp::Reverse(*rows));
        topics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matches_is_counted_in_words() {
        let topics = [("orders", 234), ("payments", 1_000)];
        let two = Matched {
            topics: topics.map(|(topic, rows)| (topic.to_owned(), rows)).to_vec(),
        };
        assert_eq!(two.describe(&REDRIVE), "1,234 dead letters of 2 topics");
        assert_eq!(two.by_rows()[0].0, "payments");
        let one = Matched {
            topics: vec![("orders".to_owned(), 1)],
        };
        assert_eq!(one.describe(&RELEASE), "1 hold of 1 topic");
    }
}
