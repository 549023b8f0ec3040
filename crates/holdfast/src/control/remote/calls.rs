//! Each call of the control API: who may make it, and which question to the service it is.

use super::MAX_MESSAGE;
use super::connection::{Caller, Counts, Trust};
use crate::control::service::{Follower, Problem, ProblemKind, Service};
use crate::control::{apply, join};
use holdfast_control::remote::api::control_server::{Control, ControlServer};
use holdfast_control::remote::api::*;
use holdfast_control::remote::convert;
use holdfast_control::status::STATE_RUNNING;
use holdfast_control::tls::Role;
use holdfast_control::{BUSY, Call, PATIENCE};
use serde_json::Value;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::interceptor::{InterceptedService, Interceptor};
use tonic::{Code, Request, Response, Status as Refusal};

/// Between two looks at how far something is.
const LOOK: Duration = Duration::from_millis(20);
/// Messages of a stream that wait for its client.
const WAITING: usize = 16;
/// Flows in one message.
const FLOWS_PER_MESSAGE: usize = 500;
/// Flows that are listed if nobody says how many.
const DEFAULT_FLOWS: u32 = 1000;

type Reply<T> = Result<Response<T>, Refusal>;
type Stream<T> = Pin<Box<dyn tokio_stream::Stream<Item = Result<T, Refusal>> + Send>>;

/// A place for one call; free again when the last clone is dropped.
#[derive(Clone)]
struct Seat(#[allow(dead_code)] Arc<[OwnedSemaphorePermit]>);

/// Places for calls. Whoever may only look gets no more than three quarters of them, so that viewers who do not read their answers keep no operator out.
#[derive(Clone)]
struct Seats {
    all: Arc<Semaphore>,
    lookers: Arc<Semaphore>,
}

impl Seats {
    fn new(count: usize) -> Seats {
        Seats { all: Arc::new(Semaphore::new(count)), lookers: Arc::new(Semaphore::new((count * 3 / 4).max(1))) }
    }

    fn take(&self, role: Option<Role>) -> Option<Seat> {
        let of_lookers = match role {
            Some(Role::Operator | Role::Host) => None,
            Some(Role::Viewer) | None => Some(self.lookers.clone().try_acquire_owned().ok()?),
        };
        let own = self.all.clone().try_acquire_owned().ok()?;
        Some(Seat(of_lookers.into_iter().chain([own]).collect()))
    }
}

/// See the module.
#[derive(Clone)]
pub(super) struct Calls {
    service: Arc<Service>,
    gate: Gate,
}

/// Looks at a caller again, and gives the call its seat, before its message is read: messages in memory are limited by seats.
#[derive(Clone)]
pub(super) struct Gate {
    trust: Arc<Trust>,
    counts: Arc<Counts>,
    seats: Seats,
}

impl Interceptor for Gate {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Refusal> {
        self.counts.call();
        let Some(caller) = request.extensions().get::<Caller>() else {
            return Err(Refusal::internal("a connection is somebody's"));
        };
        if let Err(reason) = self.trust.check(caller) {
            self.counts.refuse(reason);
            let name = &caller.holder.name;
            return Err(Refusal::unauthenticated(match reason {
                "certificate_not_now" => format!("the time of the certificate of `{name}` is over"),
                _ => format!("the certificate of `{name}` is not trusted here any more"),
            }));
        }
        let Some(seat) = self.seats.take(caller.holder.role) else {
            self.counts.refuse("busy");
            return Err(Refusal::resource_exhausted("too many calls at a time: try again"));
        };
        request.extensions_mut().insert(seat);
        Ok(request)
    }
}

/// What a call takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Look,
    Change,
    Join,
}

fn refusal(problem: Problem) -> Refusal {
    match problem.kind {
        ProblemKind::Wrong => Refusal::invalid_argument(problem.text),
        ProblemKind::NotNow => Refusal::failed_precondition(problem.text),
        ProblemKind::Busy => Refusal::resource_exhausted(problem.text),
        ProblemKind::Late => Refusal::deadline_exceeded(problem.text),
    }
}

fn node(number: u32) -> Result<u16, Refusal> {
    u16::try_from(number).map_err(|_| Refusal::invalid_argument(format!("{number} is no node id: they end at {}", u16::MAX)))
}

impl Calls {
    pub(super) fn new(service: Arc<Service>, trust: Arc<Trust>, counts: Arc<Counts>, seats: usize) -> Calls {
        Calls { service, gate: Gate { trust, counts, seats: Seats::new(seats) } }
    }

    /// As tonic serves it.
    pub(super) fn service(self) -> InterceptedService<ControlServer<Calls>, Gate> {
        let gate = self.gate.clone();
        InterceptedService::new(ControlServer::new(self).max_decoding_message_size(MAX_MESSAGE), gate)
    }

    /// The caller's name and the message, if the caller may do this.
    fn admit<T>(&self, need: Need, mut request: Request<T>) -> Result<(Option<Seat>, String, T), Refusal> {
        let seat = request.extensions_mut().remove::<Seat>();
        let holder = request.extensions().get::<Caller>().map(|caller| caller.holder.clone());
        let (name, role) = holder.map_or((String::new(), None), |holder| (holder.name.clone(), holder.role));
        let may = match (role, need) {
            (Some(_), Need::Look) | (Some(Role::Operator), Need::Change) | (Some(Role::Host), Need::Join) => true,
            (_, Need::Look | Need::Change | Need::Join) => false,
        };
        if may {
            return Ok((seat, name, request.into_inner()));
        }
        self.gate.counts.refuse("denied");
        let wanted = if need == Need::Join { Role::Host } else { Role::Operator };
        let text = match role {
            Some(role) => {
                format!("the certificate of `{name}` is {}'s, and this takes {}'s", role.with_article(), wanted.with_article())
            }
            None => format!(
                "the certificate of `{name}` has none of the organisational units that say what it may do: {}",
                Role::ALL.map(Role::name).join(", ")
            ),
        };
        Err(Refusal::permission_denied(text))
    }

    /// Asks the service where waiting stops nobody else. The seat is taken until that is over, also if the client goes away before.
    async fn ask<T: Send + 'static>(
        &self,
        seat: &Option<Seat>,
        question: impl FnOnce(&Service) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Refusal> {
        let (service, seat) = (self.service.clone(), seat.clone());
        let asked = tokio::task::spawn_blocking(move || {
            let _seat = seat;
            question(&service)
        });
        let asked = asked.await;
        asked.map_err(|_| Refusal::internal("the call was broken off"))?.map_err(refusal)
    }

    /// Tells how far something is, whenever `is_news` says that this is another answer than the one before, until `is_over`, or nobody listens any more. A late answer stops
    /// nothing: what is followed is most often what keeps the box busy. Until it `has_begun` the box may know of nothing.
    fn follow<A: Send + 'static, T: Clone + Send + 'static>(
        &self,
        (seat, mut has_begun): (Option<Seat>, bool),
        look: impl Fn(&Service) -> Result<A, Problem> + Clone + Send + 'static,
        tell: impl Fn(A) -> Result<T, Refusal> + Send + 'static,
        is_over: fn(&T) -> bool,
        is_news: fn(&T, &T) -> bool,
    ) -> Stream<T> {
        let calls = self.clone();
        let (sender, receiver) = mpsc::channel(WAITING);
        tokio::spawn(async move {
            let (mut told, mut answered_at): (Option<T>, _) = (None, Instant::now());
            loop {
                let seen = calls.ask(&seat, look.clone()).await.and_then(&tell);
                let is_late = seen.as_ref().is_err_and(|refusal| match refusal.code() {
                    Code::DeadlineExceeded => true,
                    Code::FailedPrecondition => !has_begun,
                    _ => false,
                });
                if is_late && answered_at.elapsed() < BUSY {
                    if tokio::time::timeout(LOOK, sender.closed()).await.is_ok() {
                        return;
                    }
                    continue;
                }
                (has_begun, answered_at) = (true, Instant::now());
                let ends = seen.as_ref().map_or(true, is_over);
                let before = core::mem::replace(&mut told, seen.as_ref().ok().cloned());
                let tells = ends || before.is_none_or(|before| told.as_ref().is_some_and(|now| is_news(&before, now)));
                if tells && sender.send(seen).await.is_err() || ends {
                    return;
                }
                if tokio::time::timeout(LOOK, sender.closed()).await.is_ok() {
                    return;
                }
            }
        });
        Box::pin(ReceiverStream::new(receiver))
    }

    /// Tells how far an order is.
    fn watch(&self, call: Call, seat: (Option<Seat>, bool)) -> Stream<Progress> {
        let look = move |service: &Service| service.answer(&call);
        let is_news = |before: &Progress, now: &Progress| (before.moved, before.refused) != (now.moved, now.refused);
        self.follow(seat, look, convert::message, |progress| progress.done, is_news)
    }
}

/// Who follows a trace from elsewhere.
struct Streaming {
    sender: mpsc::Sender<Result<TraceReply, Refusal>>,
    handle: Handle,
}

impl Streaming {
    fn send(&self, event: trace_reply::Event) -> bool {
        let reply = Ok(TraceReply { event: Some(event) });
        // Who does not read follows no more.
        self.handle.block_on(self.sender.send_timeout(reply, PATIENCE)).is_ok()
    }
}

impl Follower for Streaming {
    fn step(&mut self, step: &Value) -> bool {
        convert::message(step.clone()).is_ok_and(|step| self.send(trace_reply::Event::Step(step)))
    }

    fn has_gone(&mut self, wait: Duration) -> bool {
        self.handle.block_on(async { tokio::time::timeout(wait, self.sender.closed()).await.is_ok() })
    }
}

#[tonic::async_trait]
impl Control for Calls {
    async fn ping(&self, request: Request<PingRequest>) -> Reply<PingReply> {
        let (seat, ..) = self.admit(Need::Look, request)?;
        let answer = self.ask(&seat, |service| service.answer(&Call::Ping)).await?;
        Ok(Response::new(convert::message(answer)?))
    }

    async fn get_status(&self, request: Request<GetStatusRequest>) -> Reply<Status> {
        let (seat, ..) = self.admit(Need::Look, request)?;
        let answer = self.ask(&seat, |service| service.answer(&Call::Status)).await?;
        Ok(Response::new(convert::message(answer)?))
    }

    type ListFlowsStream = Stream<ListFlowsReply>;

    async fn list_flows(&self, request: Request<ListFlowsRequest>) -> Reply<Stream<ListFlowsReply>> {
        let (seat, _, ListFlowsRequest { filter, limit }) = self.admit(Need::Look, request)?;
        let mut left = if limit == 0 { DEFAULT_FLOWS } else { limit };
        let calls = self.clone();
        // No more is asked for than the client takes.
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut after = None;
            loop {
                let (words, wanted) = (filter.clone(), left);
                let list = calls.ask(&seat, move |service| service.list(&words, wanted, after)).await;
                let next = list.as_ref().ok().and_then(|list| list.next);
                left = list.as_ref().map_or(0, |list| left.saturating_sub(list.flows.len() as u32));
                let goes_on = next.is_some() && left > 0;
                let replies = list.and_then(|list| convert::flows(list, goes_on, FLOWS_PER_MESSAGE));
                let replies = replies.map_or_else(|refusal| vec![Err(refusal)], |replies| replies.into_iter().map(Ok).collect());
                for reply in replies {
                    // A client that does not read within the timeout gets no more of the
                    // list.
                    if sender.send_timeout(reply, PATIENCE).await.is_err() {
                        return;
                    }
                }
                if !goes_on {
                    return;
                }
                after = next;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    type TraceStream = Stream<TraceReply>;

    async fn trace(&self, request: Request<TraceRequest>) -> Reply<Stream<TraceReply>> {
        let (seat, _, TraceRequest { selector, count, wait_ms }) = self.admit(Need::Look, request)?;
        let (sender, receiver) = mpsc::channel(WAITING);
        let service = self.service.clone();
        let mut streaming = Streaming { sender: sender.clone(), handle: Handle::current() };
        tokio::task::spawn_blocking(move || {
            let _seat = seat;
            match service.trace(&selector, count, Duration::from_millis(wait_ms), &mut streaming) {
                Ok(packets) => {
                    streaming.send(trace_reply::Event::Done(TraceDone { packets: packets as u64 }));
                }
                Err(problem) => {
                    let _ = sender.try_send(Err(refusal(problem)));
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    type MigrateStream = Stream<Progress>;

    async fn migrate(&self, request: Request<MigrateRequest>) -> Reply<Stream<Progress>> {
        let (seat, _, MigrateRequest { from, to, limit, filter }) = self.admit(Need::Change, request)?;
        let (from, to, limit) = (node(from)?, to.map(node).transpose()?, limit.unwrap_or(u64::MAX));
        let answer = self.ask(&seat, move |service| service.answer(&Call::Move { from, to, limit, filter })).await?;
        let order = answer["order"].as_u64().and_then(|order| u32::try_from(order).ok());
        let order = order.ok_or_else(|| Refusal::internal("the order has no number"))?;
        Ok(Response::new(self.watch(Call::Moving { order }, (seat, true))))
    }

    type DrainStream = Stream<Progress>;

    async fn drain(&self, request: Request<DrainRequest>) -> Reply<Stream<Progress>> {
        let (seat, _, DrainRequest { runtime, force }) = self.admit(Need::Change, request)?;
        let runtime = node(runtime)?;
        let begun = self.ask(&seat, move |service| service.answer(&Call::Drain { runtime, force })).await;
        let has_begun = begun.is_ok();
        begun.map(|_| ()).or_else(|late| if late.code() == Code::DeadlineExceeded { Ok(()) } else { Err(late) })?;
        Ok(Response::new(self.watch(Call::Draining { runtime }, (seat, has_begun))))
    }

    type RestoreStream = Stream<RestoreProgress>;

    async fn restore(&self, request: Request<RestoreRequest>) -> Reply<Stream<RestoreProgress>> {
        let (seat, _, RestoreRequest { runtime }) = self.admit(Need::Change, request)?;
        let id = node(runtime)?;
        self.ask(&seat, move |service| service.answer(&Call::Restore { runtime: id })).await?;
        let look = move |service: &Service| service.state_of(id);
        let tell = move |state: Option<String>| {
            let state = state.unwrap_or_default();
            Ok(RestoreProgress { runtime, done: state == STATE_RUNNING, state })
        };
        let is_news = |before: &RestoreProgress, now: &RestoreProgress| before.state != now.state;
        Ok(Response::new(self.follow((seat, true), look, tell, |progress| progress.done, is_news)))
    }

    async fn apply(&self, request: Request<ApplyRequest>) -> Reply<ApplyReply> {
        // Only to say what would change changes nothing, but it shows what the configuration is.
        let (seat, _, ApplyRequest { file, text, dry_run }) = self.admit(Need::Change, request)?;
        let answer = self.ask(&seat, move |service| apply::apply(service, file, text, dry_run)).await?;
        Ok(Response::new(convert::applied(answer)?))
    }

    async fn stop(&self, request: Request<StopRequest>) -> Reply<StopReply> {
        let _held = self.admit(Need::Change, request)?;
        let service = self.service.clone();
        // The answer goes first: the end breaks connections off.
        tokio::spawn(async move {
            tokio::time::sleep(LOOK).await;
            service.stop();
        });
        Ok(Response::new(StopReply { pid: self.service.pid }))
    }

    async fn join(&self, request: Request<JoinRequest>) -> Reply<JoinReply> {
        let (seat, name, JoinRequest { host }) = self.admit(Need::Join, request)?;
        if name != host {
            self.gate.counts.refuse("denied");
            let text = format!("the certificate is of the host `{name}`: it cannot join as `{}`", host.escape_debug());
            return Err(Refusal::permission_denied(text));
        }
        let joined = self.ask(&seat, move |service| join::join(service, &host)).await?;
        let files = joined.files.into_iter().map(|(path, contents)| File { path, contents: contents.to_vec() }).collect();
        Ok(Response::new(JoinReply { cluster: joined.cluster, text: joined.text, files }))
    }
}
