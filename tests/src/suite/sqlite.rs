//! A database with a journal, and one with a write-ahead log in shared memory.

use std::path::Path;

use super::Suite;
use crate::exec::{command, run};
use crate::secs;

/// Transactions in both journal modes.
pub struct Sqlite {
    transactions: u64,
}

/// Rows that each transaction adds.
const ROWS: u64 = 20;

impl Sqlite {
    /// With so many transactions for each journal mode.
    #[must_use]
    pub fn of(transactions: u64) -> Self {
        Self { transactions }
    }
}

impl Suite for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn work(&mut self, at: &Path, _outside: &Path) {
        for mode in ["delete", "wal"] {
            let mut script = format!(
                ".bail on\npragma journal_mode={mode};\npragma synchronous=full;\n\
                 create table t(a integer primary key, b text, c integer);\ncreate index i on t(c);\n"
            );
            for transaction in 0..self.transactions {
                script.push_str("begin immediate;\n");
                for row in 0..ROWS {
                    let key = transaction * ROWS + row;
                    script.push_str(&format!(
                        "insert into t values({key}, hex(zeroblob(200)), {});\n",
                        key * 7 % 1000
                    ));
                }
                script.push_str("commit;\nbegin; delete from t; rollback;\n");
            }
            let file = at.join(format!("{mode}.sql"));
            std::fs::write(&file, script).expect("write the script");
            let read = format!(".read {mode}.sql");
            let printed = run(
                command("sqlite3", &["-batch", &format!("{mode}.db"), &read]).current_dir(at),
                secs(300),
            );
            assert_eq!(printed.lines().next(), Some(mode), "journal mode");
        }
    }

    fn verify(&self, at: &Path, _outside: &Path) {
        let count = self.transactions * ROWS;
        let keys: u64 = (0..count).sum();
        let values: u64 = (0..count).map(|key| key * 7 % 1000).sum();
        let expected = format!("ok\n{count}|{keys}|{values}\n");
        for mode in ["delete", "wal"] {
            let query = "pragma integrity_check; select count(*), sum(a), sum(c) from t where length(b) = 400;";
            let printed = run(
                command("sqlite3", &["-batch", &format!("{mode}.db"), query]).current_dir(at),
                secs(300),
            );
            assert_eq!(printed, expected, "{mode}.db");
        }
    }
}
