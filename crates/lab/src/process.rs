//! Programs that run beside the laboratory: their output is in scratch files, their end
//! enforced.

use super::wait::{Interrupt, Interrupted, until};
use anyhow::{Context, Error, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// A running program. Dropping it kills its process group.
///
/// Output goes to files, not pipes: the program never blocks on a reader, and its output
/// can still be read when it has ended.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
    release: bool,
}

impl Process {
    /// Starts `command` with its output in `NAME.out` and `NAME.err` under `scratch`. The
    /// command's process group must be its own, as
    /// [`Namespace::command`](super::Namespace::command) makes it.
    pub fn start(mut command: Command, name: &str, scratch: &Path) -> Result<Process> {
        let (stdout, stderr) =
            (scratch.join(format!("{name}.out")), scratch.join(format!("{name}.err")));
        let file =
            |path: &Path| File::create(path).with_context(|| format!("making {}", path.display()));
        command.stdin(Stdio::null()).stdout(file(&stdout)?).stderr(file(&stderr)?);
        let child = command.spawn().with_context(|| format!("starting {name}"))?;
        Ok(Process { name: name.to_owned(), child, stdout, stderr, release: false })
    }

    /// The program's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The program's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The program's standard output so far.
    pub fn stdout(&self) -> String {
        read_lossy(&self.stdout)
    }

    /// The program's standard error so far.
    pub fn stderr(&self) -> String {
        read_lossy(&self.stderr)
    }

    /// The program's exit status, if it has ended.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("watching {}", self.name))
    }

    /// Waits until the program ends.
    pub fn wait(&mut self, limit: Duration, interrupt: &Interrupt) -> Result<ExitStatus> {
        let what = format!("{} ends", self.name);
        until(&what, limit, interrupt, || self.try_wait())
    }

    /// Waits until the program ends with success, and returns its standard output.
    pub fn finish(&mut self, limit: Duration, interrupt: &Interrupt) -> Result<String> {
        let status = self.wait(limit, interrupt)?;
        if !status.success() {
            bail!("{} failed: {status}\n{}", self.name, self.last_words());
        }
        Ok(self.stdout())
    }

    /// Waits until `probe` has an answer, and fails as soon as the program ends before
    /// that.
    pub fn wait_while_running<T>(
        &mut self,
        what: &str,
        limit: Duration,
        interrupt: &Interrupt,
        mut probe: impl FnMut(&Process) -> Result<Option<T>>,
    ) -> Result<T> {
        let answer = until(what, limit, interrupt, || {
            if let Some(answer) = probe(self)? {
                return Ok(Some(answer));
            }
            if let Some(status) = self.try_wait()? {
                bail!("{} ended instead ({status}): {what}", self.name);
            }
            Ok(None)
        });
        answer.map_err(|error| quoting(error, &self.last_words()))
    }

    /// Sends the program a signal. A program that has ended is no error.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        signal_pid(self.pid(), signal)
    }

    /// The end of the program's output, for an error message.
    pub fn last_words(&self) -> String {
        let mut text = String::new();
        for (stream, content) in [("stdout", self.stdout()), ("stderr", self.stderr())] {
            let lines: Vec<&str> = content.lines().collect();
            if !lines.is_empty() {
                let tail = &lines[lines.len().saturating_sub(15)..];
                text += &format!("--- end of {} of {}\n{}\n", stream, self.name, tail.join("\n"));
            }
        }
        if text.is_empty() { format!("{} said nothing", self.name) } else { text }
    }

    /// Lets the program run on when this is dropped.
    pub fn release(&mut self) {
        self.release = true;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.release || matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        if let Some(group) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// The error with a program's last output below it; an interrupt is passed on unchanged,
/// because it is no failure.
pub(super) fn quoting(error: Error, words: &str) -> Error {
    if error.is::<Interrupted>() { error } else { anyhow!("{error:#}\n{words}") }
}

fn read_lossy(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// Sends a signal to a process. A process that has ended is no error.
pub fn signal_pid(pid: u32, signal: Signal) -> Result<()> {
    let pid = Pid::from_raw(pid as i32).with_context(|| format!("{pid} is no process id"))?;
    match kill_process(pid, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("signalling process {pid}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).process_group(0);
        command
    }

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir()
            .join(format!("holdfast-process-test-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn output_is_kept_and_failure_quotes_it() {
        let scratch = scratch("output");
        let limit = Duration::from_secs(10);
        let interrupt = Interrupt::default();
        let mut good = Process::start(shell("echo said"), "good", &scratch).unwrap();
        assert_eq!(good.finish(limit, &interrupt).unwrap(), "said\n");
        let mut bad = Process::start(shell("echo why >&2; exit 4"), "bad", &scratch).unwrap();
        let error = bad.finish(limit, &interrupt).unwrap_err().to_string();
        assert!(error.contains("bad failed") && error.contains("why"), "{error}");
        let mut early = Process::start(shell("exit 0"), "early", &scratch).unwrap();
        let error =
            early.wait_while_running::<()>("ready", limit, &interrupt, |_| Ok(None)).unwrap_err();
        assert!(format!("{error:#}").contains("ended instead"), "{error:#}");
        fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn dropping_kills_the_whole_group() {
        let scratch = scratch("group");
        let process =
            Process::start(shell("sleep 1000 & echo $!; wait"), "parent", &scratch).unwrap();
        let interrupt = Interrupt::default();
        let child: u32 = until("the child's pid", Duration::from_secs(10), &interrupt, || {
            Ok(process.stdout().trim().parse().ok())
        })
        .unwrap();
        drop(process);
        until("the child dies", Duration::from_secs(10), &interrupt, || {
            // An orphan may stay a zombie if no parent reaps it; it is dead all the same.
            let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            Ok((stat.is_empty() || stat.contains(") Z ")).then_some(()))
        })
        .unwrap();
        fs::remove_dir_all(scratch).unwrap();
    }
}
