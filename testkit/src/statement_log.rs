//! Which statements a PostgreSQL client executes, read from what it sends.

use std::collections::HashMap;

/// Protocol codes of the packets that come before the first message.
const SSL_REQUEST: u32 = 80_877_103;

/// One client's side of a conversation, from its first byte.
#[derive(Default)]
pub struct StatementLog {
    pending: Vec<u8>,
    has_started: bool,
    /// The texts of prepared statements, by their names.
    prepared: HashMap<Vec<u8>, String>,
}

impl StatementLog {
    /// Reads more of what the client sends; returns the texts of the statements that these bytes complete.
    pub fn read(&mut self, bytes: &[u8]) -> Vec<String> {
        self.pending.extend_from_slice(bytes);
        let mut executed = Vec::new();
        while let Some(message) = self.next_message() {
            executed.extend(self.executed(&message));
        }
        executed
    }

    /// The next whole message, type byte first; none for what comes before the session has started.
    fn next_message(&mut self) -> Option<Vec<u8>> {
        loop {
            let typed = usize::from(self.has_started);
            let length = u32::from_be_bytes(self.pending.get(typed..typed + 4)?.try_into().ok()?) as usize;
            if self.pending.len() < typed + length {
                return None;
            }
            let message: Vec<u8> = self.pending.drain(..typed + length).collect();
            if self.has_started {
                return Some(message);
            }
            self.has_started = message[4..8] != SSL_REQUEST.to_be_bytes();
        }
    }

    fn executed(&mut self, message: &[u8]) -> Option<String> {
        let mut strings = message[5..].split(|byte| *byte == 0);
        match message[0] {
            b'Q' => Some(text(strings.next()?)),
            b'P' => {
                let name = strings.next()?.to_vec();
                self.prepared.insert(name, text(strings.next()?));
                None
            }
            // A portal's name, then the statement's.
            b'B' => self.prepared.get(strings.nth(1)?).cloned(),
            _ => None,
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether these bytes of the server end with "ready for the next query".
pub fn ends_an_answer(bytes: &[u8]) -> bool {
    bytes.len() >= 6 && bytes[bytes.len() - 6..bytes.len() - 1] == [b'Z', 0, 0, 0, 5]
}
