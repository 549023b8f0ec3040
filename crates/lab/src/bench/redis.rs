//! A Redis of the benchmark's own, with its socket in a directory that is removed with
//! it. The Redis writes nothing to a disk.

use redis::{Client, Connection};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const PROGRAM: &str = "redis-server";
/// Longest wait for its start.
const LIMIT: Duration = Duration::from_secs(10);

/// A running Redis. Dropping it ends it and removes its directory.
pub(super) struct Redis {
    process: Child,
    directory: PathBuf,
    client: Client,
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Redis {
    /// Starts a Redis.
    ///
    /// # Errors
    /// Redis is not installed, or does not answer.
    pub(super) fn start() -> Result<Redis, String> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let directory =
            std::env::temp_dir().join(format!("holdfast-redis-{}-{number}", std::process::id()));
        std::fs::create_dir(&directory)
            .map_err(|error| format!("{}: {error}", directory.display()))?;
        let socket = directory.join("socket");
        let mut command = Command::new(PROGRAM);
        command
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(&socket)
            .arg("--dir")
            .arg(&directory);
        let process =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let process =
            process.map_err(|error| format!("`{PROGRAM}`: {error} (`make setup` installs it)"))?;
        let client = Client::open(format!("unix://{}", socket.display()))
            .map_err(|error| error.to_string())?;
        let redis = Redis { process, directory, client };
        let deadline = Instant::now() + LIMIT;
        loop {
            match redis.connect() {
                Ok(_) => return Ok(redis),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Opens another connection.
    ///
    /// # Errors
    /// Redis does not answer.
    pub(super) fn connect(&self) -> Result<Connection, String> {
        self.client.get_connection().map_err(|error| format!("`{PROGRAM}`: {error}"))
    }
}
