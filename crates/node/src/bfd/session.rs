//! A BFD session (RFC 5880, sections 6.2 and 6.8). Times are nanoseconds, intervals
//! microseconds, as on the wire.

use super::memory::Byte;
use super::{Discard, Key, Memory};
use holdfast_wire::bfd::{Control, Diagnostic, MAX_LEN, State};

/// The least interval at which a session that is not up sends, µs (section 6.8.3).
const SLOW: u32 = 1_000_000;
/// For so long after a change of keys the former key counts at most, ns.
const BOTH_COUNT: u64 = 60_000_000_000;
/// ns in a µs.
const MICROSECOND: u64 = 1000;

/// A session's configuration.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The least interval between packets that this side sends while it is up, µs, not 0.
    pub min_transmit: u32,
    /// The least interval at which this side takes packets, µs. 0: it wants none, and
    /// detects nothing while the other side sends none.
    pub min_receive: u32,
    /// Missing packets after which the other side takes this one for dead. Not 0.
    pub multiplier: u8,
    /// The key that signs packets, and that received packets must be signed with.
    pub key: Option<Key>,
}

/// A change of a session's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The state before.
    pub from: State,
    /// The state now.
    pub to: State,
    /// The reason.
    pub diagnostic: Diagnostic,
}

/// The timers that both sides have agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timers {
    /// Interval between packets of this side, before the jitter, µs.
    pub transmit: u32,
    /// Interval between packets of the other side, as it has said last, µs. `None` while
    /// it is not heard.
    pub receive: Option<u32>,
    /// Silence after which the other side is taken for dead, µs. `None` while it is not
    /// heard.
    pub detection: Option<u64>,
}

/// The other side's variables; while it is not heard, the initial values of section
/// 6.8.1.
#[derive(Debug)]
struct Remote {
    discriminator: u32,
    state: State,
    diagnostic: Diagnostic,
    is_demanding: bool,
    min_receive: u32,
    min_transmit: u32,
    multiplier: u8,
    heard: Option<u64>,
}

impl Remote {
    const UNHEARD: Remote = Remote {
        discriminator: 0,
        state: State::Down,
        diagnostic: Diagnostic::NONE,
        is_demanding: false,
        min_receive: 1,
        min_transmit: 0,
        multiplier: 0,
        heard: None,
    };
}

/// The progress of a poll sequence (section 6.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Poll {
    Idle,
    /// The next packet polls. An answer before that belongs to an earlier poll.
    Wanted,
    Asked,
    /// Parameters changed after the poll: its answer is not about them, and another poll
    /// follows.
    Outdated,
}

/// See the module.
#[derive(Debug)]
pub struct Session {
    settings: Settings,
    /// The former key and the end of its validity: the other side may not have changed
    /// its own yet.
    former: Option<(Key, u64)>,
    discriminator: u32,
    state: State,
    diagnostic: Diagnostic,
    remote: Remote,
    /// The values of (`DesiredMinTxInterval`, `RequiredMinRxInterval`) in use, µs. A
    /// longer transmit interval, and a shorter receive interval, are used once the other
    /// side knows of them (section 6.8.3).
    in_use: (u32, u32),
    /// The pair that was decided on last.
    decided: (u32, u32),
    poll: Poll,
    owes_final: bool,
    /// The next packet would differ from the last: it does not wait for the interval
    /// (section 6.8.7).
    is_urgent: bool,
    /// The time of the last periodic packet.
    sent_at: Option<u64>,
    /// The part of 2^32 by which the interval after it is shortened.
    jitter: u32,
    /// Interval between packets of this side when it was up last, µs.
    last_interval: u32,
    sequence: u32,
    /// The last sequence number that was taken, and the end of its validity (section
    /// 6.8.1, `bfd.AuthSeqKnown`).
    taken: Option<(u32, u64)>,
    since: u64,
    downs: u64,
    down_for: Diagnostic,
    /// The session continues an earlier incarnation's, and the other side has not been
    /// heard since.
    is_resumed: bool,
    /// The other side went down while this side had no process.
    was_away: bool,
}

impl Session {
    /// A session that is down and has heard nothing. `discriminator`: this side's name
    /// for it, not 0, of no other session; `sequence`: its first sequence number, best at
    /// random (section 6.8.1).
    ///
    /// # Panics
    /// If the discriminator, the transmit interval or the multiplier is 0.
    pub fn new(settings: Settings, discriminator: u32, sequence: u32, now: u64) -> Session {
        assert!(discriminator != 0 && settings.multiplier != 0 && settings.min_transmit != 0);
        let decided = (settings.min_transmit.max(SLOW), settings.min_receive);
        Session {
            settings,
            former: None,
            discriminator,
            state: State::Down,
            diagnostic: Diagnostic::NONE,
            remote: Remote::UNHEARD,
            in_use: decided,
            decided,
            poll: Poll::Idle,
            owes_final: false,
            is_urgent: false,
            sent_at: None,
            jitter: 0,
            last_interval: SLOW,
            sequence,
            taken: None,
            since: now,
            downs: 0,
            down_for: Diagnostic::NONE,
            is_resumed: false,
            was_away: false,
        }
    }

    /// Continues a session from its memory, by the same clock. The session is still up if
    /// the other side cannot have missed the earlier incarnation yet; otherwise it is
    /// down, under the same discriminator and with the next number. `None` if the memory
    /// holds no session.
    ///
    /// # Panics
    /// As [`Session::new`].
    pub fn resume(settings: Settings, memory: &Memory, now: u64) -> Option<Session> {
        let (discriminator, remote_discriminator) = memory.half(Memory::DISCRIMINATORS);
        let (sequence, taken) = memory.half(Memory::SEQUENCES);
        let state = |byte| State::ALL.get(usize::from(memory.byte(byte))).copied();
        let diagnostic = |byte| Diagnostic::new(memory.byte(byte));
        let (min_receive, min_transmit) = memory.half(Memory::REMOTE_INTERVALS);
        let remote = Remote {
            discriminator: remote_discriminator,
            state: state(Byte::RemoteState)?,
            diagnostic: diagnostic(Byte::RemoteDiagnostic)?,
            is_demanding: memory.byte(Byte::IsDemanding) != 0,
            min_receive,
            min_transmit,
            multiplier: memory.byte(Byte::Multiplier),
            // Packets that came meanwhile are lost, so the other side has a whole
            // detection time from now on.
            heard: Some(now),
        };
        let (was, down_for, since) =
            (state(Byte::State)?, diagnostic(Byte::DownFor)?, memory.0[Memory::SINCE]);
        if discriminator == 0 {
            return None;
        }
        let until = memory.0[Memory::TAKEN_UNTIL];
        let session = Session {
            taken: (until > 0).then_some((taken, until)),
            downs: memory.0[Memory::DOWNS] & Memory::MAX_DOWNS,
            down_for,
            ..Session::new(settings, discriminator, sequence, now)
        };
        let mut up = Session {
            state: State::Up,
            diagnostic: diagnostic(Byte::Diagnostic)?,
            remote,
            in_use: memory.half(Memory::INTERVALS),
            since,
            is_urgent: true,
            is_resumed: true,
            ..session
        };
        let is_missed_after =
            u64::from(up.settings.multiplier) * u64::from(up.transmit_interval()) * MICROSECOND;
        let is_missed = now.saturating_sub(memory.0[Memory::SENT_AT]) >= is_missed_after;
        if was == State::Up && up.remote.state == State::Up && !is_missed {
            up.decide();
            // A poll has the other side tell its state at once, whatever was asked
            // before.
            up.poll = Poll::Wanted;
            return Some(up);
        }
        let is_down_since = if was == State::Up { now } else { since };
        let (downs, down_for) = if was == State::Up {
            (up.downs + 1, Diagnostic::TIME_EXPIRED)
        } else {
            (up.downs, down_for)
        };
        let decided = (up.settings.min_transmit.max(SLOW), up.settings.min_receive);
        Some(Session {
            state: State::Down,
            diagnostic: Diagnostic::NONE,
            remote: Remote::UNHEARD,
            in_use: decided,
            since: is_down_since,
            is_urgent: false,
            is_resumed: false,
            downs,
            down_for,
            ..up
        })
    }

    /// The memory for the next incarnation, as of now.
    pub fn memory(&self) -> Memory {
        let Session { remote, .. } = self;
        let (taken, until) = self.taken.unwrap_or_default();
        let small = [
            self.state as u8,
            self.diagnostic.number(),
            self.down_for.number(),
            remote.state as u8,
            remote.diagnostic.number(),
            remote.multiplier,
            u8::from(remote.is_demanding),
            0,
        ];
        Memory([
            u64::from_le_bytes(small),
            Memory::halves(self.discriminator, remote.discriminator),
            Memory::halves(self.sequence, taken),
            until,
            Memory::halves(remote.min_receive, remote.min_transmit),
            Memory::halves(self.in_use.0, self.in_use.1),
            self.sent_at.unwrap_or(0),
            self.since,
            self.downs.min(Memory::MAX_DOWNS),
        ])
    }

    /// True if the session went down because the other side missed it while it had no
    /// process: that says nothing about the link.
    pub fn was_away(&self) -> bool {
        self.was_away
    }

    /// The state.
    pub fn state(&self) -> State {
        self.state
    }

    /// The reason of the last change of state.
    pub fn diagnostic(&self) -> Diagnostic {
        self.diagnostic
    }

    /// This side's name for the session.
    pub fn discriminator(&self) -> u32 {
        self.discriminator
    }

    /// The other side's name for the session; 0 while that is not known.
    pub fn remote_discriminator(&self) -> u32 {
        self.remote.discriminator
    }

    /// The state and reason that the other side said last. Down if it is not heard.
    pub fn remote(&self) -> (State, Diagnostic) {
        (self.remote.state, self.remote.diagnostic)
    }

    /// The time of the last change of state.
    pub fn since(&self) -> u64 {
        self.since
    }

    /// How often the session has gone down, and the reason of the last time.
    pub fn downs(&self) -> (u64, Diagnostic) {
        (self.downs, self.down_for)
    }

    /// The timers in use.
    pub fn timers(&self) -> Timers {
        let is_heard = self.remote.heard.is_some();
        Timers {
            transmit: self.transmit_interval(),
            receive: is_heard.then(|| self.receive_interval()),
            detection: is_heard.then(|| self.detection_time() / MICROSECOND),
        }
    }

    /// The transmit interval (section 6.8.2).
    fn transmit_interval(&self) -> u32 {
        self.in_use.0.max(self.remote.min_receive)
    }

    fn receive_interval(&self) -> u32 {
        self.in_use.1.max(self.remote.min_transmit)
    }

    /// The detection time (section 6.8.4), ns.
    fn detection_time(&self) -> u64 {
        u64::from(self.remote.multiplier) * u64::from(self.receive_interval()) * MICROSECOND
    }

    fn deadline(&self) -> Option<u64> {
        self.remote.heard.map(|heard| heard.saturating_add(self.detection_time()))
    }

    /// Changes intervals and multiplier of a running session (section 6.8.3).
    ///
    /// # Panics
    /// As [`Session::new`].
    pub fn set_intervals(&mut self, min_transmit: u32, min_receive: u32, multiplier: u8) {
        assert!(multiplier != 0 && min_transmit != 0);
        self.settings.min_transmit = min_transmit;
        self.settings.min_receive = min_receive;
        self.settings.multiplier = multiplier;
        self.decide();
    }

    /// Intervals follow from the settings and the state; a change of them is told by a
    /// poll sequence (section 6.8.3).
    fn decide(&mut self) {
        let least = if self.state == State::Up { 1 } else { SLOW };
        let decided = (self.settings.min_transmit.max(least), self.settings.min_receive);
        if decided != self.decided {
            self.decided = decided;
            self.poll = match self.poll {
                Poll::Idle | Poll::Wanted => Poll::Wanted,
                Poll::Asked | Poll::Outdated => Poll::Outdated,
            };
        }
        if self.state != State::Up {
            self.in_use = decided;
        }
        self.in_use = (self.in_use.0.min(decided.0), self.in_use.1.max(decided.1));
    }

    /// Changes the key. The former key counts too until the other side has used the new
    /// one, but for a minute at most; it signs while the other side is heard. An operator
    /// can change the other side's key a moment later, and the session stays up. False if
    /// the key is the same.
    pub fn set_key(&mut self, key: Key, now: u64) -> bool {
        if self.settings.key.as_ref().is_some_and(|own| own.is_same(&key)) {
            return false;
        }
        self.former =
            self.settings.key.replace(key).map(|former| (former, now.saturating_add(BOTH_COUNT)));
        true
    }

    /// The key of the next packet.
    fn signing_key(&self, now: u64) -> Option<&Key> {
        match &self.former {
            Some((former, until)) if now < *until && self.remote.heard.is_some() => Some(former),
            _ => self.settings.key.as_ref(),
        }
    }

    /// Holds the session down, or lets it come up again (section 6.8.16). The other side
    /// is told, and does not take it for a failure.
    pub fn set_admin_down(&mut self, is_down: bool, now: u64) -> Option<Change> {
        match (is_down, self.state) {
            (true, State::AdminDown) => None,
            (true, _) => self.enter(State::AdminDown, Diagnostic::ADMIN_DOWN, now),
            (false, State::AdminDown) => self.enter(State::Down, Diagnostic::NONE, now),
            (false, _) => None,
        }
    }

    /// True while the session is held down and the other side has not confirmed: it may
    /// have missed that, and would take it for a failure. Ends when the other side is not
    /// heard.
    pub fn is_taking_leave(&self) -> bool {
        self.state == State::AdminDown && self.remote.state == State::Up
    }

    fn enter(&mut self, to: State, diagnostic: Diagnostic, now: u64) -> Option<Change> {
        let from = self.state;
        if from == State::Up {
            self.last_interval = self.transmit_interval();
            self.downs += 1;
            self.down_for = diagnostic;
        }
        (self.state, self.diagnostic, self.since) = (to, diagnostic, now);
        self.was_away = false;
        self.is_urgent = true;
        self.decide();
        Some(Change { from, to, diagnostic })
    }

    /// Takes a packet of this session, which lies in `payload` (section 6.8.6). Returns
    /// the change of state, if there is one.
    ///
    /// # Errors
    /// The reason why the packet is not believed; then nothing has changed.
    pub fn handle(
        &mut self,
        packet: &Control<'_>,
        payload: &[u8],
        now: u64,
    ) -> Result<Option<Change>, Discard> {
        let sequence = match &self.settings.key {
            None if packet.authentication.is_some() => return Err(Discard::Unauthenticated),
            None => None,
            Some(key) => {
                let last = self.taken.filter(|(_, until)| now < *until).map(|(last, _)| last);
                match (key.verify(packet, payload, last), &self.former) {
                    (Err(Discard::Unauthenticated), Some((former, until))) if now < *until => {
                        former.verify(packet, payload, last)?
                    }
                    (verified, _) => {
                        let sequence = verified?;
                        // The other side uses the new key; the former one is not needed.
                        self.former = None;
                        sequence
                    }
                }
            }
        };
        self.remote = Remote {
            discriminator: packet.my_discriminator,
            state: packet.state,
            diagnostic: packet.diagnostic,
            is_demanding: packet.demand,
            min_receive: packet.required_min_rx,
            min_transmit: packet.desired_min_tx,
            multiplier: packet.detect_multiplier,
            heard: Some(now),
        };
        let is_resumed = core::mem::take(&mut self.is_resumed);
        if packet.is_final {
            match self.poll {
                Poll::Asked => {
                    self.poll = Poll::Idle;
                    self.in_use = self.decided;
                }
                Poll::Outdated => self.poll = Poll::Wanted,
                Poll::Idle | Poll::Wanted => {}
            }
        }
        self.taken =
            sequence.map(|sequence| (sequence, now.saturating_add(2 * self.detection_time())));
        if self.state == State::AdminDown {
            return Ok(None);
        }
        self.owes_final |= packet.poll;
        let next = match (self.state, packet.state) {
            (State::Init | State::Up, State::AdminDown) => {
                Some((State::Down, Diagnostic::NEIGHBOR_SIGNALED_DOWN))
            }
            (State::Down, State::Down) => Some((State::Init, Diagnostic::NONE)),
            (State::Down, State::Init) | (State::Init, State::Init | State::Up) => {
                Some((State::Up, Diagnostic::NONE))
            }
            (State::Up, State::Down) => Some((State::Down, Diagnostic::NEIGHBOR_SIGNALED_DOWN)),
            _ => None,
        };
        let change = next.and_then(|(to, diagnostic)| self.enter(to, diagnostic, now));
        self.was_away |= is_resumed && change.is_some();
        Ok(change)
    }

    /// Advances the time: the other side may have been silent for the detection time
    /// (sections 6.8.1 and 6.8.4).
    pub fn handle_timeout(&mut self, now: u64) -> Option<Change> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return None;
        }
        self.remote = Remote::UNHEARD;
        if matches!(self.state, State::Init | State::Up) {
            return self.enter(State::Down, Diagnostic::TIME_EXPIRED, now);
        }
        None
    }

    /// The time of the next packet, if there is one.
    fn due(&self) -> Option<u64> {
        if self.owes_final {
            return Some(0);
        }
        if self.remote.min_receive == 0 {
            return None;
        }
        let are_both_up = self.state == State::Up && self.remote.state == State::Up;
        if self.is_urgent {
            return Some(0);
        }
        if self.remote.is_demanding && are_both_up && self.poll == Poll::Idle {
            return None;
        }
        // A side that has not heard of the end expects packets as often as before.
        let interval =
            if self.is_taking_leave() { self.last_interval } else { self.transmit_interval() };
        let interval = u64::from(interval) * MICROSECOND;
        // Jitter of section 6.8.7: shorter by 0 to 25 %, and by 10 % at least if the
        // other side waits for one packet only.
        let (least, most) = if self.settings.multiplier == 1 { (10, 25) } else { (0, 25) };
        let drawn = (u128::from(interval) * (most - least) * u128::from(self.jitter)) >> 32;
        let shortened = interval - (u128::from(interval) * least / 100 + drawn / 100) as u64;
        Some(self.sent_at.map_or(0, |sent| sent.saturating_add(shortened)))
    }

    /// Writes the next packet that is due into `into` and returns its length. Call it
    /// until there is none. `random`: one number for each packet's jitter.
    pub fn poll_transmit(
        &mut self,
        now: u64,
        random: &mut dyn FnMut() -> u64,
        into: &mut [u8; MAX_LEN],
    ) -> Option<usize> {
        if self.due().is_none_or(|due| now < due) {
            return None;
        }
        let is_final = core::mem::take(&mut self.owes_final);
        self.is_urgent = false;
        if !is_final {
            self.sent_at = Some(now);
            self.jitter = (random() >> 32) as u32;
            if self.poll == Poll::Wanted {
                self.poll = Poll::Asked;
            }
        }
        self.sequence = self.sequence.wrapping_add(1);
        let packet = Control {
            state: self.state,
            diagnostic: self.diagnostic,
            poll: !is_final && self.poll != Poll::Idle,
            is_final,
            control_plane_independent: false,
            demand: false,
            detect_multiplier: self.settings.multiplier,
            my_discriminator: self.discriminator,
            your_discriminator: self.remote.discriminator,
            desired_min_tx: self.decided.0,
            required_min_rx: self.decided.1,
            required_min_echo_rx: 0,
            authentication: self.signing_key(now).map(|key| key.section(self.sequence)),
        };
        // Cannot fail: there is room for every packet, and a key fits.
        let len = packet.write(into).ok()?;
        if let Some(key) = self.signing_key(now) {
            key.sign(&mut into[..len]);
        }
        Some(len)
    }

    /// The time at which [`Session::handle_timeout`] or [`Session::poll_transmit`] has
    /// something to do next.
    pub fn poll_timeout(&self) -> u64 {
        self.due().unwrap_or(u64::MAX).min(self.deadline().unwrap_or(u64::MAX))
    }
}
