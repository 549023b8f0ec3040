//! Conversations with a server.

use super::*;

const A: Peer = Peer { node: NodeId::new(16), incarnation: 1 };
const B: Peer = Peer { node: NodeId::new(17), incarnation: 2 };

fn server() -> Server {
    let limits =
        Limits { size: 4, credit: 4, lease: 0, rest: 10, unknown_rest: 10, timeout: 5, step: 1 };
    let mut server = Server::new(&[Kind::Indexes(limits), Kind::Counters(2), Kind::Gauge(2)], 0, 1)
        .expect("it is small");
    for peer in [A, B] {
        server.apply(Input::Joined(peer)).expect("there is room");
        server.apply(Input::Begun { with: peer, arrived: 0 }).expect("nothing was said");
    }
    server
}

fn say(
    server: &mut Server,
    from: Peer,
    opcode: Opcode,
    list: u32,
    index: u32,
) -> Result<(), Refused> {
    server.apply(Input::Said { from, message: Message::new(opcode, list, index) })
}

fn told(server: &mut Server, peer: Peer) -> Vec<String> {
    let link = server.link(peer).expect("it lives");
    core::iter::from_fn(|| link.poll()).map(|message| message.to_string()).collect()
}

/// An instance with unused indexes is asked for them before another hears that there is
/// none. The question comes once, and its answer is not waited for longer than the
/// time-out; an instance that needs indexes itself is not asked.
#[test]
fn nobody_is_refused_what_others_have_at_hand() {
    let mut server = server();
    say(&mut server, A, Opcode::IndexRequest, 0, 3).expect("it is heard");
    say(&mut server, B, Opcode::IndexRequest, 0, 2).expect("it is heard");
    assert_eq!(
        told(&mut server, A),
        ["IndexAssignment 0/0", "IndexAssignment 0/1", "IndexAssignment 0/2", "Spare 0/0"]
    );
    say(&mut server, B, Opcode::IndexRequest, 0, 1).expect("it is heard");
    assert_eq!(told(&mut server, B), ["IndexAssignment 0/3"]);
    say(&mut server, A, Opcode::Rejuvenate, 0, 1).expect("it is heard");
    say(&mut server, A, Opcode::Return, 0, 0).expect("it is heard");
    assert_eq!(told(&mut server, B), ["IndexAssignment 0/0"]);
    say(&mut server, A, Opcode::Rejuvenate, 0, 2).expect("it is heard");
    assert_eq!(
        told(&mut server, B),
        ["NoMoreIndex 0/2"],
        "one more was wanted, and nobody has one"
    );
    // Both want one now, and have what they have for flows of theirs.
    say(&mut server, A, Opcode::IndexRequest, 0, 1).expect("it is heard");
    assert_eq!(
        (told(&mut server, A), told(&mut server, B)),
        (vec![], vec!["Spare 0/0".to_owned()])
    );
    say(&mut server, B, Opcode::IndexRequest, 0, 1).expect("it is heard");
    assert_eq!(told(&mut server, A), ["NoMoreIndex 0/2"], "who could have spared some needs them");
    assert_eq!(told(&mut server, B), ["NoMoreIndex 0/3"]);
    // B, which was asked already, answers nothing.
    say(&mut server, A, Opcode::IndexRequest, 0, 1).expect("it is heard");
    server.apply(Input::Time(4)).expect("it passes");
    assert_eq!(told(&mut server, A), [""; 0]);
    server.apply(Input::Time(5)).expect("it passes");
    assert_eq!(
        (told(&mut server, A), told(&mut server, B)),
        (vec!["NoMoreIndex 0/3".to_owned()], vec![])
    );
    say(&mut server, A, Opcode::IndexRequest, 0, 1).expect("it is heard");
    assert_eq!(
        (told(&mut server, A), told(&mut server, B)),
        (vec![], vec!["Spare 0/0".to_owned()]),
        "it is asked again"
    );
}

#[test]
fn statistics_grow_and_are_read() {
    let mut server = server();
    for (peer, operand) in [(A, 0), (B, 1 << 40), (A, 5)] {
        for message in server.form().operands(operand).collect::<Vec<_>>() {
            server.apply(Input::Said { from: peer, message }).expect("it is heard");
        }
        say(&mut server, peer, Opcode::UpdateStatistics, 1, 1).expect("it is heard");
    }
    assert_eq!(
        (server.statistic(1, 0), server.statistic(1, 1), server.statistic(0, 0)),
        (Some(0), Some((1 << 40) + 6), None)
    );
    say(&mut server, B, Opcode::ReadStatistics, 1, 1).expect("it is heard");
    let link = server.link(B).expect("it lives");
    let words: Vec<Message> = core::iter::from_fn(|| link.poll()).collect();
    let (value, last) = words.split_at(words.len() - 1);
    assert_eq!(
        value.iter().fold(0, |value, word| Form::Narrow.extend(value, *word)),
        (1 << 40) + 6
    );
    assert_eq!(last, [Message::new(Opcode::UpdateStatistics, 1, 1)]);
}

/// A gauge has a sign, and every instance hears, when the time is looked at, what the
/// others have of it; a dead one's part is there until all have spoken twice.
#[test]
fn gauges_are_told_to_the_others() {
    let mut server = server();
    let with = |server: &mut Server, from: Peer, opcode: Opcode, amount: u64| {
        for message in server.form().operands(amount).collect::<Vec<_>>() {
            server.apply(Input::Said { from, message }).expect("it is heard");
        }
        say(server, from, opcode, 2, 1).expect("it is heard");
    };
    with(&mut server, A, Opcode::UpdateStatistics, 0);
    with(&mut server, A, Opcode::LowerStatistics, 1 << 30);
    with(&mut server, B, Opcode::LowerStatistics, 0);
    assert_eq!(server.statistic(2, 1), Some(-(1 << 30)));
    assert_eq!([A, B].map(|peer| told(&mut server, peer).len()), [0, 0]);
    server.apply(Input::Time(1)).expect("it passes");
    assert_eq!(told(&mut server, A), ["Operand 0/1", "LowerStatistics 2/1"]);
    assert_eq!(told(&mut server, B), ["Operand 0/31", "Operand 31/1048575", "LowerStatistics 2/1"]);
    server.apply(Input::Time(2)).expect("it passes");
    assert_eq!(told(&mut server, A), [""; 0], "nothing has changed");
    say(&mut server, A, Opcode::LowerStatistics, 1, 0).expect("it is heard");
    assert_eq!(told(&mut server, A), ["UpdateFailure 1/0"], "counters only grow");
    server.apply(Input::Recovered(A)).expect("it lived");
    assert_eq!(server.statistic(2, 1), Some(-(1 << 30)));
    for number in [1, 2] {
        with(&mut server, B, Opcode::UpdateStatistics, 2);
        for message in Form::Narrow.operands(number) {
            server.apply(Input::Said { from: B, message }).expect("it is heard");
        }
        say(&mut server, B, Opcode::Claimed, 0, 0).expect("it is heard");
    }
    assert_eq!(server.statistic(2, 1), Some(3));
    told(&mut server, B);
    server.apply(Input::Time(3)).expect("it passes");
    assert_eq!(told(&mut server, B), ["UpdateStatistics 2/1"], "nobody has anything but itself");
}

/// An instance that acknowledges nothing is not sent more than its link can hold.
#[test]
fn what_gauges_say_leaves_room() {
    let mut server = Server::new(&[Kind::Gauge(5000)], 0, 1).expect("it is small");
    for peer in [A, B] {
        server.apply(Input::Joined(peer)).expect("there is room");
        server.apply(Input::Begun { with: peer, arrived: 0 }).expect("nothing was said");
    }
    for index in 0..5000 {
        say(&mut server, A, Opcode::UpdateStatistics, 0, index).expect("it is heard");
    }
    (0..10).for_each(|now| server.apply(Input::Time(now)).expect("it passes"));
    let mut heard = 0;
    while let words = told(&mut server, B)
        && !words.is_empty()
    {
        assert!(words.len() <= 2 * QUESTIONS + 2, "{} at a time", words.len());
        heard += words.len();
        let arrived = server.link(B).expect("it lives").sent();
        server.apply(Input::Over(B)).expect("it lives");
        server.apply(Input::Begun { with: B, arrived }).expect("it has heard all");
        server.apply(Input::Time(20)).expect("it passes");
    }
    assert_eq!(heard, 2 * 5000);
    say(&mut server, B, Opcode::UpdateStatistics, 0, 0).expect("it is heard");
}

/// Messages about unknown lists and indexes, or for the wrong kind of list, are refused
/// with a message; unknown instances, and those that take nothing, are not listened to.
#[test]
fn mistakes_are_refused() {
    let mut server = server();
    for (opcode, list, index) in [
        (Opcode::IndexRequest, 7, 1),
        (Opcode::Rejuvenate, 0, 4),
        (Opcode::Rejuvenate, 0, 0),
        (Opcode::Expire, 1, 0),
        (Opcode::UpdateStatistics, 1, 2),
        (Opcode::NoMoreIndex, 0, 0),
    ] {
        say(&mut server, A, opcode, list, index).expect("it is heard");
        assert_eq!(told(&mut server, A), [format!("UpdateFailure {list}/{index}")], "{opcode:?}");
    }
    let nobody = Peer { node: NodeId::new(18), incarnation: 1 };
    assert_eq!(say(&mut server, nobody, Opcode::IndexRequest, 0, 1), Err(Refused::Unknown));
    assert_eq!(server.apply(Input::Begun { with: A, arrived: 77 }), Err(Refused::OutOfStep));
    assert_eq!(say(&mut server, A, Opcode::Acknowledge, 1, 77), Err(Refused::OutOfStep));
    assert_eq!(server.failures(), 6);
    let refusals = (0..600)
        .filter(|_| say(&mut server, A, Opcode::IndexRequest, 7, 1) == Err(Refused::Full))
        .count();
    assert_eq!(refusals, 600 - (512 - 6), "six wait already");
    server.apply(Input::Over(A)).expect("it lives");
    assert_eq!(
        say(&mut server, A, Opcode::Acknowledge, 0, 1),
        Err(Refused::OutOfStep),
        "no session is under way"
    );
    server.apply(Input::Dead(A)).expect("it lived");
    assert_eq!(server.apply(Input::Joined(A)), Err(Refused::Unknown));
}

/// A server that remembers nothing assigns nothing until everybody has spoken twice, and
/// those that died before have been got over; what is claimed until then stays whose it
/// is.
#[test]
fn what_is_not_remembered_is_nobodys_in_the_end() {
    let limits =
        Limits { size: 4, credit: 4, lease: 0, rest: 0, unknown_rest: 0, timeout: 5, step: 1 };
    let mut server = Server::unknown(&[Kind::Indexes(limits)], 0, 7).expect("it is small");
    let dead = Peer { node: NodeId::new(18), incarnation: 9 };
    for peer in [A, B] {
        server.apply(Input::Joined(peer)).expect("there is room");
        server.apply(Input::Begun { with: peer, arrived: 0 }).expect("nothing was said");
    }
    server.apply(Input::Dead(dead)).expect("it is told");
    say(&mut server, A, Opcode::IndexRequest, 0, 1).expect("it is heard");
    let musters = |server: &mut Server| {
        [A, B].map(|peer| {
            told(server, peer).iter().filter(|message| message.starts_with("RollCall")).count()
        })
    };
    let speak = |server: &mut Server, number: u64| {
        for by in [A, B] {
            for message in server.form().operands(number).collect::<Vec<_>>() {
                server.apply(Input::Said { from: by, message }).expect("it is heard");
            }
            say(server, by, Opcode::Claimed, 0, 0).expect("it is heard");
        }
    };
    say(&mut server, B, Opcode::IndexAssignment, 0, 0).expect("it is heard");
    server.apply(Input::Complete).expect("it is told");
    assert_eq!(musters(&mut server), [0, 0], "somebody may be about to get what the dead had");
    server.apply(Input::Recovered(dead)).expect("it is dead");
    assert_eq!(musters(&mut server), [1, 1]);
    speak(&mut server, 1);
    assert_eq!(musters(&mut server), [1, 1]);
    speak(&mut server, 1);
    assert!(server.is_mourning(PAST), "that is the answer to the first question");
    say(&mut server, A, Opcode::IndexAssignment, 0, 1).expect("it is heard");
    assert_eq!(server.account(0), Some(Account { free: 0, credit: 0, held: 4, resting: 0 }));
    speak(&mut server, 2);
    assert!(!server.is_mourning(PAST) && !server.is_mourning(dead));
    assert_eq!(server.account(0), Some(Account { free: 1, credit: 1, held: 2, resting: 0 }));
    let holders = |index| server.list(0).map(|list| list.holders(index).collect::<Vec<_>>());
    assert_eq!([holders(0), holders(1), holders(2)], [Some(vec![B]), Some(vec![A]), Some(vec![])]);
}

/// Most indexes of a forgotten server were free: those that nobody claims rest shortly.
/// An index that an instance says a flow had rests as always.
#[test]
fn what_nobody_claims_rests_for_a_short_time() {
    let limits = Limits {
        size: 3,
        credit: 0,
        lease: 0,
        rest: 1000,
        unknown_rest: 10,
        timeout: 5000,
        step: 1,
    };
    let mut server = Server::unknown(&[Kind::Indexes(limits)], 0, 7).expect("it is small");
    server.apply(Input::Joined(A)).expect("there is room");
    server.apply(Input::Begun { with: A, arrived: 0 }).expect("nothing was said");
    say(&mut server, A, Opcode::IndexAssignment, 0, 0).expect("it is heard");
    say(&mut server, A, Opcode::Expire, 0, 0).expect("it is heard");
    server.apply(Input::Complete).expect("it is told");
    for number in [1, 2] {
        for message in server.form().operands(number).collect::<Vec<_>>() {
            server.apply(Input::Said { from: A, message }).expect("it is heard");
        }
        say(&mut server, A, Opcode::Claimed, 0, 0).expect("it is heard");
    }
    let free_at = |server: &mut Server, now: u64| {
        server.apply(Input::Time(now)).expect("it passes");
        server.account(0).map(|account| (account.free, account.resting))
    };
    say(&mut server, A, Opcode::IndexRequest, 0, 1).expect("it is heard");
    let none = |server: &mut Server| {
        told(server, A).iter().filter(|message| message.starts_with("NoMoreIndex")).count()
    };
    assert_eq!(none(&mut server), 0, "that is not known yet");
    assert_eq!(free_at(&mut server, 5), Some((0, 3)));
    assert_eq!(free_at(&mut server, 20), Some((2, 1)));
    assert_eq!(free_at(&mut server, 990), Some((2, 1)));
    say(&mut server, A, Opcode::IndexRequest, 0, 1).expect("it is heard");
    assert_eq!(none(&mut server), 1, "it may have no credit");
    assert_eq!(free_at(&mut server, 1010), Some((3, 0)));
}

/// More indexes are due at a time than may be asked about: each answer makes room for the
/// next question.
#[test]
fn whatever_is_due_is_asked_about() {
    const SIZE: u32 = 3 * QUESTIONS as u32 + 9;
    let limits = Limits {
        size: SIZE,
        credit: SIZE,
        lease: 100,
        rest: 0,
        unknown_rest: 0,
        timeout: 1_000_000,
        step: 1,
    };
    let mut server = Server::new(&[Kind::Indexes(limits)], 0, 1).expect("it is small");
    server.apply(Input::Joined(A)).expect("there is room");
    server.apply(Input::Begun { with: A, arrived: 0 }).expect("nothing was said");
    let mut acknowledged = 0;
    let mut heard = |server: &mut Server| {
        let link = server.link(A).expect("it lives");
        let heard: Vec<Message> = core::iter::from_fn(|| link.poll())
            .filter(|message| message.opcode != Opcode::Acknowledge)
            .collect();
        acknowledged += heard.len() as u64;
        let acknowledge =
            Form::Narrow.operands(acknowledged).last().expect("it is more than nothing");
        let message = Message { opcode: Opcode::Acknowledge, ..acknowledge };
        server.apply(Input::Said { from: A, message }).expect("it was said");
        heard
    };
    say(&mut server, A, Opcode::IndexRequest, 0, SIZE).expect("it is heard");
    for Message { index, .. } in heard(&mut server) {
        say(&mut server, A, Opcode::Rejuvenate, 0, index).expect("it is heard");
    }
    assert_eq!(server.account(0), Some(Account { free: 0, credit: 0, held: SIZE, resting: 0 }));
    server.apply(Input::Time(200)).expect("it passes");
    let mut asked = BTreeSet::new();
    for count in [QUESTIONS, QUESTIONS, QUESTIONS, 9] {
        let questions = heard(&mut server);
        assert_eq!(questions.len(), count);
        for Message { opcode, index, .. } in questions {
            assert_eq!((opcode, asked.insert(index)), (Opcode::Expire, true));
            say(&mut server, A, Opcode::Answered, 0, index).expect("it is heard");
        }
    }
    assert_eq!(server.account(0), Some(Account { free: SIZE, credit: 0, held: 0, resting: 0 }));
}

/// An instance dies during a roll call: others will claim its share, and the roll call
/// begins anew.
#[test]
fn a_death_meanwhile_begins_it_again() {
    let mut server = server();
    let c = Peer { node: NodeId::new(18), incarnation: 3 };
    server.apply(Input::Joined(c)).expect("there is room");
    server.apply(Input::Recovered(A)).expect("it is dead");
    server.apply(Input::Dead(c)).expect("it lived");
    for number in [1, 1] {
        for message in Form::Narrow.operands(number) {
            server.apply(Input::Said { from: B, message }).expect("it is heard");
        }
        say(&mut server, B, Opcode::Claimed, 0, 0).expect("it is heard");
    }
    assert!(server.is_mourning(A) && server.is_mourning(c));
    told(&mut server, B);
    server.apply(Input::Recovered(c)).expect("it is dead");
    assert_eq!(told(&mut server, B), ["Operand 0/2", "RollCall 0/0"]);
}

/// An instance has claimed a dead one's index; then the flow moves to an instance that
/// has answered twice already. Its claim is late, but an index that a living instance
/// passed on is not the dead one's any more.
#[test]
fn what_has_been_claimed_is_not_let_go() {
    let mut server = server();
    let (c, d) = (
        Peer { node: NodeId::new(18), incarnation: 3 },
        Peer { node: NodeId::new(19), incarnation: 3 },
    );
    for peer in [c, d] {
        server.apply(Input::Joined(peer)).expect("there is room");
        server.apply(Input::Begun { with: peer, arrived: 0 }).expect("nothing was said");
    }
    say(&mut server, A, Opcode::IndexRequest, 0, 1).expect("it is heard");
    server.apply(Input::Recovered(A)).expect("it lived");
    let speak = |server: &mut Server, by: Peer, number: u64| {
        for message in Form::Narrow.operands(number) {
            server.apply(Input::Said { from: by, message }).expect("it is heard");
        }
        say(server, by, Opcode::Claimed, 0, 0).expect("it is heard");
    };
    say(&mut server, B, Opcode::IndexAssignment, 0, 0).expect("it is heard");
    [B, c, d].into_iter().for_each(|peer| speak(&mut server, peer, 1));
    speak(&mut server, c, 2);
    say(&mut server, B, Opcode::Moved, 0, 0).expect("it is heard");
    [B, d].into_iter().for_each(|peer| speak(&mut server, peer, 2));
    assert!(!server.is_mourning(A));
    assert_eq!(server.account(0), Some(Account { free: 3, credit: 0, held: 1, resting: 0 }));
    say(&mut server, c, Opcode::IndexAssignment, 0, 0).expect("it is heard");
    assert_eq!(server.list(0).expect("it is one").holders(0).collect::<Vec<_>>(), [c]);
}

/// Every living instance speaks before a dead one's indexes are released.
#[test]
fn the_dead_let_go_when_all_have_claimed() {
    let mut server = server();
    say(&mut server, A, Opcode::IndexRequest, 0, 1).expect("it is heard");
    assert_eq!(told(&mut server, A), ["IndexAssignment 0/0"]);
    say(&mut server, A, Opcode::Rejuvenate, 0, 0).expect("it is heard");
    server.apply(Input::Dead(A)).expect("it lived");
    assert_eq!(server.apply(Input::Joined(A)), Err(Refused::Unknown));
    assert_eq!(told(&mut server, B), [""; 0], "its flows are not others' yet");
    server.apply(Input::Recovered(A)).expect("it is dead");
    let link = server.link(B).expect("it lives");
    let words: Vec<Message> = core::iter::from_fn(|| link.poll()).collect();
    let (last, operand) = words.split_last().expect("it is told something");
    assert_eq!((last.opcode, operand.len()), (Opcode::RollCall, 1));
    assert_eq!(server.list(0).expect("it is one").holders(0).collect::<Vec<_>>(), [A]);
    say(&mut server, B, Opcode::IndexAssignment, 0, 0).expect("it is heard");
    assert!(server.is_mourning(A));
    for number in [1, 2] {
        for message in Form::Narrow.operands(number) {
            server.apply(Input::Said { from: B, message }).expect("it is heard");
        }
        say(&mut server, B, Opcode::Claimed, 0, 0).expect("it is heard");
        assert_eq!(server.is_mourning(A), number == 1);
    }
    server.apply(Input::Dead(A)).expect("it is known");
    server.apply(Input::Recovered(A)).expect("it is known");
    assert!(!server.is_mourning(A), "all have spoken of it already");
    assert_eq!(server.list(0).expect("it is one").holders(0).collect::<Vec<_>>(), [B]);
    assert_eq!(server.account(0), Some(Account { free: 3, credit: 0, held: 1, resting: 0 }));
}
