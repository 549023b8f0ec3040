//! A filter of system calls (seccomp) for processes that handle functions and frames.
//!
//! In: true if a foreign library runs in this process. Out: the filter, which this
//! process and its children cannot remove. Never: a filter at start-up: [`restrict`] is
//! called once everything is open.
//!
//! A call that is not allowed ends the process. [`on_denied`] writes its number to
//! standard error, and the process ends by SIGSYS: its end is noticed and recovered from
//! like any other crash. Calls of kernels newer than the list ([`NEWER`]) fail instead
//! with `ENOSYS`, as on an older kernel: a newer C library tries some of them and does
//! without.

use crate::standby;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

/// The calls of runtimes, state servers, their standbys and keepers.
const ALLOWED: &[libc::c_long] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_memfd_create,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munlock,
    libc::SYS_munmap,
    // Files: /proc, captures of quarantined packets, keys, standard error, and a
    // backtrace's files.
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_eventfd2,
    libc::SYS_faccessat,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_statx,
    libc::SYS_write,
    libc::SYS_writev,
    // Time, locks, processors.
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_futex,
    libc::SYS_get_robust_list,
    libc::SYS_getcpu,
    libc::SYS_getpriority,
    libc::SYS_getrandom,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    // Signals.
    libc::SYS_kill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    // Processes, which a keeper forks, and threads.
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_geteuid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_prctl,
    libc::SYS_prlimit64,
    libc::SYS_set_tid_address,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_wait4,
    libc::SYS_waitid,
    // Control messages in shared memory, whose descriptors go through a local socket.
    // Only such sockets can be made: see `rules`.
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_socket,
];

/// Older calls that the C library of this architecture still uses.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[libc::c_long] = &[
    libc::SYS_access,
    libc::SYS_arch_prctl,
    libc::SYS_fork,
    libc::SYS_lstat,
    libc::SYS_open,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_stat,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[libc::c_long] = &[];

/// Calls forbidden also to a process with a foreign library. Its other calls are unknown:
/// a driver of a network card may make any.
const DENIED_TO_LIBRARIES: &[libc::c_long] = &[
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_capset,
    libc::SYS_chroot,
    libc::SYS_delete_module,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_ptrace,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setfsgid,
    libc::SYS_setfsuid,
    libc::SYS_setgid,
    libc::SYS_setgroups,
    libc::SYS_setns,
    libc::SYS_setregid,
    libc::SYS_setresgid,
    libc::SYS_setresuid,
    libc::SYS_setreuid,
    libc::SYS_setuid,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

/// Numbers of calls of Linux 6.5 or later, the same on every architecture.
const NEWER: Range<i64> = 451..512;

/// Restricts this thread, and all processes and threads that it makes from now on, to the
/// system calls of a runtime's or state server's work. `has_library`: a foreign library
/// (libfabric) runs in this process; then only [`DENIED_TO_LIBRARIES`] are denied.
///
/// # Errors
/// The kernel's error; `Unsupported` on an architecture that the filter does not know.
pub fn restrict(has_library: bool) -> io::Result<()> {
    watch()?;
    let [allow, deny] = [SeccompAction::Allow, SeccompAction::Trap];
    if has_library {
        return install(rules(DENIED_TO_LIBRARIES.iter().copied())?, allow, deny);
    }
    // The kernel takes the stricter of two filters' answers.
    install(rules(NEWER)?, allow.clone(), SeccompAction::Errno(libc::ENOSYS as u32))?;
    install(rules(ALLOWED.iter().chain(ALLOWED_HERE).copied().chain(NEWER))?, deny, allow)
}

fn invalid(error: seccompiler::BackendError) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, error.to_string())
}

/// A rule without conditions for each call, and one for sockets: only local ones.
fn rules(calls: impl Iterator<Item = i64>) -> io::Result<BTreeMap<i64, Vec<SeccompRule>>> {
    let is_local = || {
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, libc::AF_UNIX as u64)
    };
    let local =
        || is_local().and_then(|condition| SeccompRule::new(vec![condition])).map_err(invalid);
    calls
        .map(|call| Ok((call, if call == libc::SYS_socket { vec![local()?] } else { Vec::new() })))
        .collect()
}

fn install(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    action: SeccompAction,
) -> io::Result<()> {
    let architecture: TargetArch = std::env::consts::ARCH.try_into().map_err(invalid)?;
    let filter = SeccompFilter::new(rules, otherwise, action, architecture).map_err(invalid)?;
    let program: BpfProgram = filter.try_into().map_err(invalid)?;
    apply_filter(&program).map_err(|error| match error {
        seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => error,
        other => io::Error::other(other.to_string()),
    })
}

/// Sets the handler that reports a denied call.
fn watch() -> io::Result<()> {
    // SAFETY: the handler only does what a handler may (see there).
    unsafe {
        let mut action = core::mem::zeroed::<libc::sigaction>();
        action.sa_sigaction =
            on_denied as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        match libc::sigaction(libc::SIGSYS, &action, core::ptr::null_mut()) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The part of `siginfo_t` that sigaction(2) describes for SIGSYS, which `libc` leaves
/// out.
#[repr(C)]
struct Denied {
    _signal: i32,
    _error: i32,
    code: i32,
    _address: usize,
    call: i32,
    _architecture: u32,
}
const _: () = assert!(
    core::mem::offset_of!(Denied, call) == 24
        && size_of::<Denied>() <= size_of::<libc::siginfo_t>()
);

/// `si_code` of a signal by which a filter denies a call (siginfo.h).
const BY_FILTER: i32 = 1;

/// Reports a denied call, and ends the process by SIGSYS. The call was this process's own
/// doing: the next worker takes packets one by one, as after any other crash.
extern "C" fn on_denied(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO valid information, at least as
    // long as this part of it.
    let denied = unsafe { &*info.cast::<Denied>() };
    if denied.code == BY_FILTER {
        standby::note_crash();
        let mut line = Line::default();
        line.put(b"holdfast: process ");
        line.put_number(std::process::id());
        line.put(b" made a system call that it may not make: ");
        line.put_number(denied.call as u32);
        line.put(b" (seccomp)\n");
        let Line { bytes, len } = line;
        // SAFETY: a handler may write, and the bytes are on this stack.
        let _ = unsafe { libc::write(2, bytes.as_ptr().cast(), len) };
    }
    // SAFETY: a handler may make these calls. The signal is blocked until the handler
    // returns, and then ends the process.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// A line made in a signal handler, which must not allocate. Text that does not fit is
/// cut off.
struct Line {
    bytes: [u8; 128],
    len: usize,
}

impl Default for Line {
    fn default() -> Line {
        Line { bytes: [0; 128], len: 0 }
    }
}

impl Line {
    fn put(&mut self, text: &[u8]) {
        for (to, from) in self.bytes.iter_mut().skip(self.len).zip(text) {
            *to = *from;
            self.len += 1;
        }
    }

    fn put_number(&mut self, number: u32) {
        if number > 9 {
            self.put_number(number / 10);
        }
        self.put(&[b'0' + (number % 10) as u8]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Output};

    const CHILD: &str = "HOLDFAST_SYSTEM_CALLS_TEST";

    /// Runs a test of this program in a process of its own, which is told what to do.
    fn child(name: &str, what: &str) -> Output {
        let path = format!("system_calls::tests::{name}");
        let arguments = [path.as_str(), "--exact", "--nocapture", "--test-threads=1"];
        Command::new(std::env::current_exe().unwrap())
            .args(arguments)
            .env(CHILD, what)
            .output()
            .unwrap()
    }

    fn call(number: libc::c_long) -> io::Error {
        // SAFETY: all arguments are zero, so that no call touches memory of this process.
        let result = unsafe { libc::syscall(number, 0, 0, 0, 0, 0, 0) };
        assert_eq!(result, -1);
        io::Error::last_os_error()
    }

    fn restricted(what: &str) {
        let (has_library, call_of) = match what {
            "shell" => (false, libc::SYS_execve),
            "shell of a library" => (true, libc::SYS_execve),
            "debugger" => (false, libc::SYS_ptrace),
            // This call is on neither list: only a library may make it.
            _ => (false, libc::SYS_flock),
        };
        restrict(has_library).unwrap();
        let error = call(call_of);
        eprintln!("the call came back: {error}");
    }

    /// A denied call ends a process with its number on standard error, in any thread or
    /// forked child.
    #[test]
    fn a_denied_call_ends_the_process() {
        const NAME: &str = "a_denied_call_ends_the_process";
        match std::env::var(CHILD).as_deref() {
            Ok("thread") => {
                restrict(false).unwrap();
                std::thread::spawn(|| call(libc::SYS_unshare)).join().unwrap();
                return;
            }
            Ok("fork") => {
                restrict(false).unwrap();
                // SAFETY: the child only makes a system call, and ends.
                let pid = unsafe { libc::fork() };
                if pid == 0 {
                    call(libc::SYS_unshare);
                    // SAFETY: as above.
                    unsafe { libc::_exit(0) }
                }
                let mut status = 0;
                // SAFETY: the status lies on this stack.
                assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
                // The parent ends as the child did, for the test to see.
                assert!(libc::WIFSIGNALED(status), "{status}");
                // SAFETY: the signal's own action ends this process.
                unsafe {
                    libc::signal(libc::WTERMSIG(status), libc::SIG_DFL);
                    libc::raise(libc::WTERMSIG(status));
                }
                return;
            }
            Ok("network") => {
                restrict(false).unwrap();
                drop(std::net::UdpSocket::bind("127.0.0.1:0"));
                return;
            }
            Ok(what) => return restricted(what),
            Err(_) => {}
        }
        for (what, number) in [
            ("shell", libc::SYS_execve),
            ("shell of a library", libc::SYS_execve),
            ("debugger", libc::SYS_ptrace),
            ("other", libc::SYS_flock),
            ("thread", libc::SYS_unshare),
            ("fork", libc::SYS_unshare),
            ("network", libc::SYS_socket),
        ] {
            let output = child(NAME, what);
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{what}: {text}");
            let line = format!("made a system call that it may not make: {number} (seccomp)");
            assert_eq!(text.matches(&line).count(), 1, "{what}: {text}");
        }
    }

    /// Memory, threads, processes, panics, files of /proc, local sockets: all of these
    /// work under the filter.
    #[test]
    fn a_restricted_process_does_its_work() {
        const NAME: &str = "a_restricted_process_does_its_work";
        if std::env::var_os(CHILD).is_none() {
            for what in ["own", "library"] {
                let output = child(NAME, what);
                assert!(
                    output.status.success(),
                    "{what}: {}\n{}",
                    output.status,
                    String::from_utf8_lossy(&output.stderr)
                );
            }
            return;
        }
        let has_library = std::env::var(CHILD).is_ok_and(|what| what == "library");
        restrict(has_library).unwrap();
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        assert!(
            status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"])),
            "{status}"
        );
        let sum = std::thread::spawn(|| (0..1u64 << 20).collect::<Vec<_>>().iter().sum::<u64>())
            .join()
            .unwrap();
        assert_eq!(sum, (1 << 20) * ((1 << 20) - 1) / 2);
        // The panic prints a backtrace, which reads this program's file.
        let panicked =
            std::panic::catch_unwind(|| panic!("{}", std::backtrace::Backtrace::force_capture()));
        assert!(panicked.is_err());
        std::os::unix::net::UnixDatagram::unbound().unwrap();
        if has_library {
            std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        }
    }

    /// A C library that is newer than the list tries a call, and is told that the kernel
    /// does not have it.
    #[test]
    fn newer_calls_do_not_exist() {
        if std::env::var_os(CHILD).is_none() {
            let output = child("newer_calls_do_not_exist", "try");
            assert!(
                output.status.success(),
                "{}\n{}",
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
            return;
        }
        restrict(false).unwrap();
        for number in [NEWER.start, NEWER.end - 1] {
            assert_eq!(call(number).raw_os_error(), Some(libc::ENOSYS), "{number}");
        }
    }

    /// SIGSYS may come from an operator: it ends the process as ever, and no call is
    /// named.
    #[test]
    fn a_signal_that_somebody_sends_names_no_call() {
        const NAME: &str = "a_signal_that_somebody_sends_names_no_call";
        if std::env::var_os(CHILD).is_some() {
            restrict(false).unwrap();
            // SAFETY: the signal's handler, and the signal's own action.
            unsafe { libc::raise(libc::SIGSYS) };
            return;
        }
        let output = child(NAME, "signal");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{text}");
        assert!(!text.contains("system call"), "{text}");
    }

    #[test]
    fn a_line_holds_what_fits() {
        let mut line = Line::default();
        line.put(b"call ");
        [0, 9, 10, 4_294_967_295].into_iter().for_each(|number| {
            line.put_number(number);
            line.put(b" ");
        });
        assert_eq!(&line.bytes[..line.len], b"call 0 9 10 4294967295 ");
        line.put(&[b'x'; 200]);
        assert_eq!(line.len, line.bytes.len());
    }
}
