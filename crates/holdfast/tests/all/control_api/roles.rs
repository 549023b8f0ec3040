//! Operators, viewers and hosts: what each may ask for, and what it gets.

use super::*;

/// The control API and the local socket give the same answers.
#[test]
fn an_operator_is_told_what_the_local_socket_tells() {
    let running = Box::start();
    let (here, there) = (running.local(), running.client("alice"));
    let status = there.status().unwrap();
    let control = status.control.clone().unwrap();
    assert_eq!((control.listen, control.connections), (running.address.to_string(), 1));
    let without_control = |status| Status { control: None, ..status };
    assert_eq!(without_control(status), without_control(here.status().unwrap()));
    assert_eq!(there.ping().unwrap().pid, std::process::id());
    for (filter, limit) in
        [("", 100), ("tcp from 10.0.0.2 port 2-3", 100), ("", 3), ("", 0), ("udp", 5)]
    {
        assert_eq!(
            there.list(filter, limit).unwrap(),
            here.list(filter, limit).unwrap(),
            "{filter:?} {limit}"
        );
    }
    let move_to = |to| MigrateRequest { from: 16, to, limit: Some(1), filter: String::new() };
    for (one, other) in [
        (refusal(there.list("tcp form any", 1)), refusal(here.list("tcp form any", 1))),
        (refusal(there.migrate(move_to(Some(99)))), refusal(here.migrate(move_to(Some(99))))),
    ] {
        assert_eq!((one.code, one.message), (other.code, other.message));
    }
    let trace = |client: &Client, selector: &str| {
        let mut steps = Vec::new();
        let seen = client.trace(selector.to_owned(), 2, LIMIT, |step| {
            steps.push(step.clone());
            Ok(())
        });
        (seen.map_err(|failure| (failure.code, failure.message)), steps)
    };
    let traced = trace(&there, "tcp");
    assert_eq!((&traced.0, traced.1.len()), (&Ok(2), 2));
    assert_eq!(traced, trace(&here, "tcp"));
    assert_eq!(trace(&there, "tpc"), trace(&here, "tpc"));
}

/// The progress of orders is reported until they are done, and orders reach the loop as
/// the local socket's do.
#[test]
fn an_operator_moves_drains_restores_applies_and_stops() {
    let running = Box::start();
    let client = running.client("alice");
    let migrate = |client: &Client| {
        client.migrate(MigrateRequest {
            from: 16,
            to: Some(17),
            limit: None,
            filter: "tcp".to_owned(),
        })
    };
    let moved = "Move { from: 16, to: Some(17), limit: 18446744073709551615, selector: \"tcp\" }";
    let drain = |client: &Client| client.drain(16, true);
    type Begin<'a> = &'a dyn Fn(&Client) -> Result<holdfast_control::Work, Failure>;
    let orders: [(Begin<'_>, &str, Option<u64>); 2] =
        [(&migrate, moved, None), (&drain, "Drain { node: 16, force: true }", Some(3))];
    for (begin, expected, had) in orders {
        for client in [&client, &running.local()] {
            let mut seen = Vec::new();
            let done = begin(client).unwrap().watch(|progress| seen.push(progress.moved)).unwrap();
            assert_eq!(running.told(), expected);
            assert_eq!(seen, [1, 2, 3]);
            assert_eq!(done, progress(3, had));
        }
    }
    client.restore(16).unwrap();
    assert_eq!(running.told(), "Restore(16)");

    let new = CONFIGURATION.replace("chain: c }]", "chain: d }]");
    let apply = |client: &Client, text: &str, dry_run| {
        client.apply("new.yaml".into(), text.into(), dry_run).unwrap()
    };
    let dry = apply(&client, &new, true);
    assert!(
        matches!(&dry, Reply::Applied(applied) if applied.dry_run && applied.changed),
        "{dry:?}"
    );
    assert!(running.asked.try_recv().is_err(), "nothing was applied");
    assert_eq!(dry, apply(&running.local(), &new, true));
    let done = apply(&client, &new, false);
    assert!(
        matches!(&done, Reply::Applied(applied) if applied.rules.as_ref().is_some_and(|rules| rules.now == 2)),
        "{done:?}"
    );
    assert_eq!(running.told(), "apply");
    for wrong in ["cluster: [", &CONFIGURATION.replace("cluster: a", "cluster: b")] {
        let answer = apply(&client, wrong, false);
        assert!(matches!(answer, Reply::Refused(_)), "{answer:?}");
        assert_eq!(answer, apply(&running.local(), wrong, false));
    }
    assert_eq!(client.stop().unwrap(), std::process::id());
    assert_eq!(running.told(), "stop");
}

/// A box that drains very many flows neither says in time that it has begun nor always
/// how far it is. A client that watches sees the progress all the same, through the API
/// and the local socket, and asks for the drain once.
#[test]
fn a_busy_box_is_drained_as_any() {
    let running = Box::start();
    for client in [running.client("alice"), running.local()] {
        let mut seen = Vec::new();
        let work = client.drain(BUSY.into(), false).unwrap();
        let done = work.watch(|progress| seen.push(progress.moved)).unwrap();
        assert_eq!((done.moved, seen), (3, vec![1, 3]));
        assert_eq!(running.told(), "drain");
        assert!(running.asked.try_recv().is_err(), "it is asked for once");
    }
}

/// A viewer only looks. A call that changes something is refused, counted, and never
/// reaches the loop. A host is no operator.
#[test]
fn who_may_only_look_changes_nothing() {
    let running = Box::start();
    let change = |client: &Client| -> Vec<Failure> {
        vec![
            refusal(client.migrate(MigrateRequest { from: 16, ..MigrateRequest::default() })),
            refusal(client.drain(16, false)),
            refusal(client.restore(16)),
            refusal(client.apply("f".into(), CONFIGURATION.into(), true)),
            refusal(client.stop()),
        ]
    };
    for (name, what) in [("wall", "a viewer's"), ("right", "a host's")] {
        let client = running.client(name);
        assert_eq!(client.status().unwrap().version, 1);
        client.list("", 1).unwrap();
        for failure in change(&client) {
            assert_eq!(failure.code, exit::PERMISSION, "{failure}");
            assert!(
                failure.message.contains(what) && failure.message.contains("an operator's"),
                "{failure}"
            );
        }
    }
    assert_eq!(running.refused("denied"), 10);
    assert!(running.asked.try_recv().is_err(), "nothing of it reached the loop");
}

/// A host gets the configuration and the files that it names by paths from its own
/// directory, under the host's own name only.
#[test]
fn a_host_joins_under_its_own_name() {
    let running = Box::start();
    let fetched = fetch(running.endpoint(), running.tls("right"), "right").unwrap();
    assert_eq!((fetched.cluster.as_str(), fetched.text.as_str()), ("a", CONFIGURATION));
    let files: Vec<(&str, &[u8])> =
        fetched.files.iter().map(|(path, bytes)| (path.as_str(), bytes.as_slice())).collect();
    assert_eq!(files, [("keys/cluster.key", &b"the cluster's key"[..])]);
    let join = |certificate: &str, name: &str| {
        fetch(running.endpoint(), running.tls(certificate), name).err().unwrap()
    };
    let other = join("right", "left");
    assert!(
        other.code == exit::PERMISSION && other.message.contains("is of the host `right`"),
        "{other}"
    );
    for name in ["alice", "wall"] {
        let failure = join(name, name);
        assert!(
            failure.code == exit::PERMISSION && failure.message.contains("takes a host's"),
            "{failure}"
        );
    }
    let stranger = join("stranger", "stranger");
    assert!(
        stranger.code == exit::NEGATIVE
            && stranger.message.contains("there is no host `stranger`: `left`, `right`"),
        "{stranger}"
    );
    std::fs::remove_file(running.scratch.path().join("keys/cluster.key")).unwrap();
    let failure = join("right", "right");
    assert!(failure.message.contains("fabric.key: keys/cluster.key"), "{failure}");
}
