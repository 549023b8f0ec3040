//! The coordinator's log: a redb database in one file, or another store of records.
//!
//! A log that need not outlive the machine is written without flushing: the kernel's copy
//! survives the process. A log in a state directory is flushed with every record; records
//! are rare.

use holdfast_node::coordinator::LogRecord;
use redb::{Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};
use rustix::fd::BorrowedFd;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

const RECORDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("coordinator");

/// The reason why a log cannot be read or written.
#[derive(Debug)]
pub(super) struct StoreError(String);

impl StoreError {
    pub(super) fn new(what: impl Into<String>) -> StoreError {
        StoreError(what.into())
    }
}

/// Keeps records for the coordinator's next incarnation.
pub(super) trait LogStore {
    /// Begins to keep records, after the earlier ones.
    fn keep(&mut self, records: Vec<LogRecord>) -> Result<(), StoreError>;

    /// True if all given records are kept. After an error the coordinator must do nothing
    /// more.
    fn is_kept(&mut self) -> Result<bool, StoreError>;

    /// Readable when `is_kept` may have another answer, if that can change by itself,
    /// until [`LogStore::calm`].
    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Clears [`LogStore::wait_fd`], before the state is read.
    fn calm(&self) {}
}

impl std::fmt::Display for StoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: Into<redb::Error>> From<E> for StoreError {
    fn from(error: E) -> StoreError {
        StoreError(error.into().to_string())
    }
}

/// The file, with a lock that ends with the process.
#[derive(Debug)]
struct Backend {
    file: File,
    is_kept: bool,
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.is_kept { self.file.sync_data() } else { Ok(()) }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }
}

/// A log in a file; see the module.
pub(super) struct Store {
    database: Database,
}

impl Store {
    /// Opens or makes the file. `is_kept`: the log outlives the machine.
    pub(super) fn open(path: &Path, is_kept: bool) -> Result<Store, StoreError> {
        let failed = |error: io::Error| StoreError(error.to_string());
        let mut options = File::options();
        // Symbolic links are not followed: another user could make us write to any file.
        let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
        let file = options.open(path).map_err(failed)?;
        file.try_lock()
            .map_err(|error| StoreError(format!("another coordinator has it: {error}")))?;
        let database = Database::builder().create_with_backend(Backend { file, is_kept })?;
        Ok(Store { database })
    }

    /// The records, in order.
    pub(super) fn records(&self) -> Result<Vec<Vec<u8>>, StoreError> {
        let reading = self.database.begin_read()?;
        let table = match reading.open_table(RECORDS) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut records = Vec::new();
        for entry in table.iter()? {
            records.push(entry?.1.value().to_vec());
        }
        Ok(records)
    }
}

impl LogStore for Store {
    /// On return all records are kept, or none if there is an error.
    fn keep(&mut self, records: Vec<LogRecord>) -> Result<(), StoreError> {
        let writing = self.database.begin_write()?;
        {
            let mut table = writing.open_table(RECORDS)?;
            for record in &records {
                if record.replaces {
                    table.retain(|_, _| false)?;
                }
                table.insert(record.number, record.bytes.as_slice())?;
            }
        }
        writing.commit()?;
        Ok(())
    }

    fn is_kept(&mut self) -> Result<bool, StoreError> {
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u64, replaces: bool) -> LogRecord {
        LogRecord { number, bytes: vec![number as u8; 3], replaces }
    }

    /// Kept records are there for the next process, in order and without those that a
    /// snapshot has replaced. While a process has the file no other can open it.
    #[test]
    fn records_outlive_the_process_that_wrote_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        for is_kept in [false, true] {
            let mut store = Store::open(&path, is_kept).unwrap();
            store.keep(vec![record(7, true), record(8, false)]).unwrap();
            store.keep(vec![record(300, false)]).unwrap();
            assert!(Store::open(&path, is_kept).is_err(), "it is in use");
            drop(store);
            let mut store = Store::open(&path, is_kept).unwrap();
            assert_eq!(store.records().unwrap(), [[7; 3], [8; 3], [300u64 as u8; 3]]);
            store.keep(vec![record(301, true)]).unwrap();
            assert_eq!(store.records().unwrap(), [[301u64 as u8; 3]]);
        }
    }

    /// A process is killed: the records that it had kept are there, although it never
    /// closed the file.
    #[test]
    fn nothing_is_lost_without_a_close() {
        let directory = tempfile::tempdir().unwrap();
        let (path, copy) = (directory.path().join("log"), directory.path().join("copy"));
        let mut store = Store::open(&path, false).unwrap();
        store.keep(vec![record(1, true)]).unwrap();
        for number in 2..50 {
            store.keep(vec![record(number, false)]).unwrap();
            std::fs::copy(&path, &copy).unwrap();
            assert_eq!(
                Store::open(&copy, false).unwrap().records().unwrap().len(),
                number as usize
            );
            std::fs::remove_file(&copy).unwrap();
        }
    }

    /// A file that is no log is refused with an error, not a panic; so is an unreadable
    /// file, and a symbolic link.
    #[test]
    fn what_is_no_log_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        std::fs::write(&path, [0x5a; 5000]).unwrap();
        assert!(Store::open(&path, false).is_err_and(|error| !error.to_string().is_empty()));
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(Store::open(&link, false).is_err());
    }
}
