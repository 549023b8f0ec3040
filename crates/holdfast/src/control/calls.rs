//! The calls: the right that each needs, and the service's question that it becomes.

use super::connection::{Caller, Refused};
use super::service::{Follower, Service};
use super::{MAX_CLIENTS, Request as Question, Work, apply, join};
use holdfast_control::api::control_server::{Control, ControlServer};
use holdfast_control::api::*;
use holdfast_control::status::STATE_RUNNING;
use holdfast_control::tls::Role;
use holdfast_control::{BUSY, MAX_REQUEST, TIMEOUT};
use holdfast_node::message::Order;
use holdfast_wire::NodeId;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::interceptor::{InterceptedService, Interceptor};
use tonic::{Code, Request, Response, Status as Refusal};

/// The pause between two looks at an order's progress.
const LOOK: Duration = Duration::from_millis(20);
/// Messages of a stream that may wait for its client.
const WAITING: usize = 16;
/// Flows in one message.
const FLOWS_PER_MESSAGE: usize = 500;
/// Flows to list by default.
const DEFAULT_FLOWS: u32 = 1000;

type Reply<T> = Result<Response<T>, Refusal>;
type Stream<T> = Pin<Box<dyn tokio_stream::Stream<Item = Result<T, Refusal>> + Send>>;

/// A seat for one call; free again when the last clone is dropped.
#[derive(Clone)]
struct Seat(#[allow(dead_code)] Arc<[OwnedSemaphorePermit]>);

/// Seats for calls. Viewers get at most three quarters of them, so that viewers who do
/// not read their answers keep no operator out.
#[derive(Clone)]
pub(super) struct Seats {
    all: Arc<Semaphore>,
    lookers: Arc<Semaphore>,
}

impl Seats {
    pub(super) fn new(count: usize) -> Seats {
        Seats {
            all: Arc::new(Semaphore::new(count)),
            lookers: Arc::new(Semaphore::new((count * 3 / 4).max(1))),
        }
    }

    fn take(&self, is_looker: bool) -> Option<Seat> {
        let of_lookers =
            if is_looker { Some(self.lookers.clone().try_acquire_owned().ok()?) } else { None };
        let own = self.all.clone().try_acquire_owned().ok()?;
        Some(Seat(of_lookers.into_iter().chain([own]).collect()))
    }
}

/// The calls of the control API; see the module.
#[derive(Clone)]
pub(super) struct Calls {
    service: Arc<Service>,
}

/// Checks a caller again and gives the call its seat before its message is read: seats
/// limit the messages in memory.
#[derive(Clone)]
pub(super) struct Gate {
    /// Seats of callers through the Unix socket.
    seats: Seats,
}

impl Interceptor for Gate {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Refusal> {
        let Some(caller) = request.extensions().get::<Caller>() else {
            return Err(Refusal::internal("a connection is somebody's"));
        };
        let seat = match caller {
            Caller::Local => self.seats.take(false),
            Caller::Remote { holder, certificates, api } => {
                api.counts.call();
                if let Err(reason) = api.trust.check(certificates) {
                    api.counts.refuse(reason);
                    return Err(Refusal::unauthenticated(match reason {
                        Refused::CertificateNotNow => {
                            format!("the time of the certificate of `{}` is over", holder.name)
                        }
                        _ => format!(
                            "the certificate of `{}` is not trusted here any more",
                            holder.name
                        ),
                    }));
                }
                api.seats.take(!matches!(holder.role, Some(Role::Operator | Role::Host)))
            }
        };
        let Some(seat) = seat else {
            caller.refuse(Refused::Busy);
            return Err(Refusal::resource_exhausted("too many calls at a time: try again"));
        };
        request.extensions_mut().insert(seat);
        Ok(request)
    }
}

/// The right that a call needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Look,
    Change,
    Join,
}

fn node(number: u32) -> Result<NodeId, Refusal> {
    u16::try_from(number).map(NodeId::new).map_err(|_| {
        Refusal::invalid_argument(format!("{number} is no node id: they end at {}", u16::MAX))
    })
}

impl Calls {
    pub(super) fn new(service: Arc<Service>) -> Calls {
        Calls { service }
    }

    /// The service for tonic.
    pub(super) fn service(self) -> InterceptedService<ControlServer<Calls>, Gate> {
        let gate = Gate { seats: Seats::new(MAX_CLIENTS) };
        InterceptedService::new(
            ControlServer::new(self).max_decoding_message_size(MAX_REQUEST),
            gate,
        )
    }

    /// The caller and the message, if the caller may make this call.
    fn admit<T>(&self, need: Need, mut request: Request<T>) -> Result<(Seat, Caller, T), Refusal> {
        let extensions = request.extensions_mut();
        let (Some(seat), Some(caller)) =
            (extensions.remove::<Seat>(), extensions.remove::<Caller>())
        else {
            return Err(Refusal::internal("the gate gives each call a seat"));
        };
        let refused = match &caller {
            Caller::Local => None,
            Caller::Remote { holder, .. } => match (holder.role, need) {
                (Some(_), Need::Look)
                | (Some(Role::Operator), Need::Change)
                | (Some(Role::Host), Need::Join) => None,
                (None, _) => Some(format!(
                    "the certificate of `{}` has none of the organisational units that say what it may do: {}",
                    holder.name,
                    Role::ALL.map(Role::name).join(", ")
                )),
                (Some(role), Need::Change | Need::Join) => {
                    let wanted = if need == Need::Join { Role::Host } else { Role::Operator };
                    let (has, takes) = (role.with_article(), wanted.with_article());
                    Some(format!(
                        "the certificate of `{}` is {has}'s, and this takes {takes}'s",
                        holder.name
                    ))
                }
            },
        };
        match refused {
            None => Ok((seat, caller, request.into_inner())),
            Some(text) => {
                caller.refuse(Refused::Denied);
                Err(Refusal::permission_denied(text))
            }
        }
    }

    /// Asks the service on a thread that may block. The seat is taken until that is over,
    /// even if the client leaves earlier.
    async fn ask<T: Send + 'static>(
        &self,
        seat: &Seat,
        question: impl FnOnce(&Service) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let (service, seat) = (self.service.clone(), seat.clone());
        let asked = tokio::task::spawn_blocking(move || {
            let _seat = seat;
            question(&service)
        });
        let asked = asked.await;
        asked.map_err(|_| Refusal::internal("the call was broken off"))?
    }

    /// Streams an order's progress, whenever `is_news` says that an answer differs from
    /// the one before, until `is_over` or the client has left. A packet loop too busy to
    /// answer is asked again; while `has_begun` is false, also one that does not know of
    /// the order.
    fn follow<T: Clone + Send + 'static>(
        &self,
        seat: Seat,
        mut has_begun: bool,
        look: impl Fn(&Service) -> Result<T, Refusal> + Clone + Send + 'static,
        is_over: fn(&T) -> bool,
        is_news: fn(&T, &T) -> bool,
    ) -> Stream<T> {
        let calls = self.clone();
        let (sender, receiver) = mpsc::channel(WAITING);
        tokio::spawn(async move {
            let mut told: Option<T> = None;
            let mut answered_at = Instant::now();
            loop {
                let seen = calls.ask(&seat, look.clone()).await;
                let is_too_early = |refusal: &Refusal| match refusal.code() {
                    Code::DeadlineExceeded => true,
                    Code::FailedPrecondition => !has_begun,
                    _ => false,
                };
                if seen.as_ref().is_err_and(is_too_early) && answered_at.elapsed() < BUSY {
                    if tokio::time::timeout(LOOK, sender.closed()).await.is_ok() {
                        return;
                    }
                    continue;
                }
                (has_begun, answered_at) = (true, Instant::now());
                let ends = seen.as_ref().map_or(true, is_over);
                let before = core::mem::replace(&mut told, seen.as_ref().ok().cloned());
                let tells = ends
                    || before.is_none_or(|before| {
                        told.as_ref().is_some_and(|now| is_news(&before, now))
                    });
                // A client that takes no news within the time-out loses its seat; the
                // order goes on.
                if tells && sender.send_timeout(seen, TIMEOUT).await.is_err() || ends {
                    return;
                }
                if tokio::time::timeout(LOOK, sender.closed()).await.is_ok() {
                    return;
                }
            }
        });
        Box::pin(ReceiverStream::new(receiver))
    }

    /// Streams an order's progress.
    fn watch(&self, work: Work, seat: Seat, has_begun: bool) -> Stream<Progress> {
        let look = move |service: &Service| service.ask(|answer| Question::Progress(work, answer));
        let is_news = |before: &Progress, now: &Progress| {
            (before.moved, before.refused) != (now.moved, now.refused)
        };
        self.follow(seat, has_begun, look, |progress| progress.done, is_news)
    }
}

/// The client of a trace.
struct Streaming {
    sender: mpsc::Sender<Result<TraceReply, Refusal>>,
    handle: Handle,
}

impl Streaming {
    fn send(&self, event: trace_reply::Event) -> bool {
        let reply = Ok(TraceReply { event: Some(event) });
        // A client that does not read stops following.
        self.handle.block_on(self.sender.send_timeout(reply, TIMEOUT)).is_ok()
    }
}

impl Follower for Streaming {
    fn step(&mut self, step: TraceStep) -> bool {
        self.send(trace_reply::Event::Step(step))
    }

    fn has_gone(&mut self, wait: Duration) -> bool {
        self.handle
            .block_on(async { tokio::time::timeout(wait, self.sender.closed()).await.is_ok() })
    }
}

#[tonic::async_trait]
impl Control for Calls {
    async fn ping(&self, request: Request<PingRequest>) -> Reply<PingReply> {
        let (seat, ..) = self.admit(Need::Look, request)?;
        self.ask(&seat, Service::ping).await.map(Response::new)
    }

    async fn get_status(&self, request: Request<GetStatusRequest>) -> Reply<Status> {
        let (seat, ..) = self.admit(Need::Look, request)?;
        self.ask(&seat, Service::status).await.map(Response::new)
    }

    type ListFlowsStream = Stream<ListFlowsReply>;

    async fn list_flows(
        &self,
        request: Request<ListFlowsRequest>,
    ) -> Reply<Stream<ListFlowsReply>> {
        let (seat, _, ListFlowsRequest { filter, limit, mut after }) =
            self.admit(Need::Look, request)?;
        let mut left = if limit == 0 { DEFAULT_FLOWS } else { limit };
        let calls = self.clone();
        // The list is fetched as fast as the client takes it.
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                let (words, wanted) = (filter.clone(), left);
                let list = match calls
                    .ask(&seat, move |service| service.list(&words, wanted, &after))
                    .await
                {
                    Ok(list) => list,
                    Err(refusal) => return drop(sender.send_timeout(Err(refusal), TIMEOUT).await),
                };
                left = left.saturating_sub(list.flows.len() as u32);
                let goes_on = !list.next.is_empty() && left > 0;
                after = list.next.clone();
                for reply in pieces(list, goes_on, FLOWS_PER_MESSAGE) {
                    // A client that does not read within the timeout gets no more of the
                    // list.
                    if sender.send_timeout(Ok(reply), TIMEOUT).await.is_err() {
                        return;
                    }
                }
                if !goes_on {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    type TraceStream = Stream<TraceReply>;

    async fn trace(&self, request: Request<TraceRequest>) -> Reply<Stream<TraceReply>> {
        let (seat, _, TraceRequest { selector, count, wait_ms }) =
            self.admit(Need::Look, request)?;
        let (sender, receiver) = mpsc::channel(WAITING);
        let service = self.service.clone();
        let mut streaming = Streaming { sender: sender.clone(), handle: Handle::current() };
        tokio::task::spawn_blocking(move || {
            let _seat = seat;
            match service.trace(&selector, count, Duration::from_millis(wait_ms), &mut streaming) {
                Ok(packets) => {
                    streaming.send(trace_reply::Event::Done(TraceDone { packets }));
                }
                Err(refusal) => {
                    let _ = sender.try_send(Err(refusal));
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    type MigrateStream = Stream<Progress>;

    async fn migrate(&self, request: Request<MigrateRequest>) -> Reply<Stream<Progress>> {
        let (seat, _, MigrateRequest { from, to, limit, filter }) =
            self.admit(Need::Change, request)?;
        let (from, to, limit) = (node(from)?, to.map(node).transpose()?, limit.unwrap_or(u64::MAX));
        let order =
            self.ask(&seat, move |service| service.migrate(from, to, limit, &filter)).await?;
        Ok(Response::new(self.watch(Work::Moving(order), seat, true)))
    }

    type DrainStream = Stream<Progress>;

    async fn drain(&self, request: Request<DrainRequest>) -> Reply<Stream<Progress>> {
        let (seat, _, DrainRequest { runtime, force }) = self.admit(Need::Change, request)?;
        let node = node(runtime)?;
        let order = Order::Drain { node, force };
        let begun = self
            .ask(&seat, move |service| service.ask(|answer| Question::Order(order, answer)))
            .await;
        let has_begun = match begun {
            Ok(_) => true,
            // The drain was ordered, and moving the flows most likely keeps the packet
            // loop busy.
            Err(late) if late.code() == Code::DeadlineExceeded => false,
            Err(refusal) => return Err(refusal),
        };
        Ok(Response::new(self.watch(Work::Draining(node), seat, has_begun)))
    }

    async fn get_progress(&self, request: Request<GetProgressRequest>) -> Reply<Progress> {
        let (seat, _, GetProgressRequest { what }) = self.admit(Need::Look, request)?;
        let work = match what {
            Some(get_progress_request::What::Order(order)) => Work::Moving(order),
            Some(get_progress_request::What::Drained(runtime)) => Work::Draining(node(runtime)?),
            None => {
                return Err(Refusal::invalid_argument("say which order, or which drained runtime"));
            }
        };
        let look = move |service: &Service| service.ask(|answer| Question::Progress(work, answer));
        self.ask(&seat, look).await.map(Response::new)
    }

    type RestoreStream = Stream<RestoreProgress>;

    async fn restore(&self, request: Request<RestoreRequest>) -> Reply<Stream<RestoreProgress>> {
        let (seat, _, RestoreRequest { runtime }) = self.admit(Need::Change, request)?;
        let order = Order::Restore(node(runtime)?);
        self.ask(&seat, move |service| service.ask(|answer| Question::Order(order, answer)))
            .await?;
        let look = move |service: &Service| {
            let state = service.state_of(runtime)?.unwrap_or_default();
            Ok(RestoreProgress { runtime, done: state == STATE_RUNNING, state })
        };
        let is_news = |before: &RestoreProgress, now: &RestoreProgress| before.state != now.state;
        Ok(Response::new(self.follow(seat, true, look, |progress| progress.done, is_news)))
    }

    async fn apply(&self, request: Request<ApplyRequest>) -> Reply<ApplyReply> {
        // A dry run changes nothing, but shows the configuration.
        let (seat, _, ApplyRequest { file, text, dry_run }) = self.admit(Need::Change, request)?;
        let result =
            self.ask(&seat, move |service| apply::apply(service, &file, text, dry_run)).await?;
        Ok(Response::new(ApplyReply { result: Some(result) }))
    }

    async fn stop(&self, request: Request<StopRequest>) -> Reply<StopReply> {
        let _held = self.admit(Need::Change, request)?;
        let service = self.service.clone();
        // The answer is sent first: the end breaks connections.
        tokio::spawn(async move {
            tokio::time::sleep(LOOK).await;
            service.stop();
        });
        Ok(Response::new(StopReply { pid: self.service.pid }))
    }

    async fn join(&self, request: Request<JoinRequest>) -> Reply<JoinReply> {
        let (seat, caller, JoinRequest { host }) = self.admit(Need::Join, request)?;
        if let Caller::Remote { holder, .. } = &caller
            && holder.name != host
        {
            caller.refuse(Refused::Denied);
            let text = format!(
                "the certificate is of the host `{}`: it cannot join as `{}`",
                holder.name,
                host.escape_debug()
            );
            return Err(Refusal::permission_denied(text));
        }
        self.ask(&seat, move |service| join::join(service, &host)).await.map(Response::new)
    }
}

/// A list in messages of `length` flows; at least one. The last one says if the list is
/// truncated and where it continues, unless `goes_on`.
fn pieces(list: ListFlowsReply, goes_on: bool, length: usize) -> Vec<ListFlowsReply> {
    let ListFlowsReply { mut flows, truncated, next } = list;
    let mut pieces = Vec::new();
    while flows.len() > length {
        let rest = flows.split_off(length);
        let flows = core::mem::replace(&mut flows, rest);
        pieces.push(ListFlowsReply { flows, ..Default::default() });
    }
    pieces.push(if goes_on {
        ListFlowsReply { flows, ..Default::default() }
    } else {
        ListFlowsReply { flows, truncated, next }
    });
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_says_at_its_end_whether_there_is_more() {
        for (count, expected) in
            [(0, &[0][..]), (1, &[1]), (2, &[2]), (4, &[2, 2]), (5, &[2, 2, 1])]
        {
            let list = ListFlowsReply {
                flows: vec![Flow::default(); count],
                truncated: true,
                next: vec![1, 2, 3, 4],
            };
            let of = |goes_on| pieces(list.clone(), goes_on, 2);
            assert_eq!(
                of(false).iter().map(|piece| piece.flows.len()).collect::<Vec<_>>(),
                expected
            );
            let (last, others) = of(false)
                .split_last()
                .map(|(last, others)| (last.clone(), others.to_vec()))
                .unwrap();
            assert!(
                last.truncated
                    && last.next == list.next
                    && others.iter().all(|piece| !piece.truncated)
            );
            assert!(
                of(true).iter().all(|piece| !piece.truncated && piece.next.is_empty()),
                "more follows"
            );
        }
    }
}
