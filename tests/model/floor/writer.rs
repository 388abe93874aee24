//! An application's transaction: it locks the table, draws one id, and ends some time later.

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Writer {
    Idle,
    /// The lock comes before the id, and a transaction id may come long after it.
    Drawn {
        id: i64,
        has_transaction_id: bool,
    },
    Committed {
        id: i64,
    },
    RolledBack,
    /// Lost with the server it was written to.
    Vanished,
}

impl Writer {
    pub fn drawn(&self) -> Option<i64> {
        match self {
            Writer::Drawn { id, .. } => Some(*id),
            _ => None,
        }
    }

    pub fn committed(&self) -> Option<i64> {
        match self {
            Writer::Committed { id } => Some(*id),
            _ => None,
        }
    }

    pub fn id(&self) -> Option<i64> {
        self.drawn().or(self.committed())
    }

    pub fn get_transaction_id(&mut self) -> bool {
        let Writer::Drawn { has_transaction_id, .. } = self else {
            return false;
        };
        *has_transaction_id = true;
        true
    }

    pub fn commit(&mut self) -> bool {
        let Some(id) = self.drawn() else { return false };
        *self = Writer::Committed { id };
        true
    }

    pub fn roll_back(&mut self) -> bool {
        let may = self.drawn().is_some();
        *self = Writer::RolledBack;
        may
    }
}
