//! The socket in the file system: whose it is, and who removes it.

use super::*;

#[test]
fn the_socket_is_its_owners_only_and_goes_with_the_box() {
    let mut running = Box::start(0);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let directory = running.path.parent().unwrap().to_owned();
    assert_eq!((mode(&running.path), mode(&directory)), (0o600, 0o700));
    let mut there: Vec<_> =
        std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    there.sort();
    assert_eq!(there, ["box.sock", "box.sock.lock"], "nothing else is there");
    assert_eq!(mode(&directory.join("box.sock.lock")), 0o600);
    let client = running.client();
    drop(running.server.take());
    assert!(!directory.exists(), "what it made is gone");
    let gone = refusal(client.ping());
    assert_eq!(gone.code, exit::UNAVAILABLE);
}

/// The socket's whole directory is removed under a box. At the next look the socket is
/// made again, and this is reported once. A second box is refused before and after. A
/// file in the socket's place is left alone, and reported once.
#[test]
fn a_removed_socket_is_made_again_and_its_name_stays_taken() {
    let mut running = Box::start(0);
    let directory = running.path.parent().unwrap().to_owned();
    let path = running.path.clone();
    let second =
        || refusal(control::listen_and_stop(&path, channel().0, Arc::new(|| {}), Arc::new(|| {})));
    let look = |running: &mut Box| running.server.as_mut().unwrap().look();
    assert_eq!(look(&mut running), None);
    std::fs::remove_file(&path).unwrap();
    assert!(second().message.contains("running already"), "without its socket");
    assert!(look(&mut running).unwrap().contains("it is there again"));
    assert_eq!(look(&mut running), None);
    assert_eq!(running.client().status().unwrap().protected(), Protected::Yes);

    std::fs::remove_dir_all(&directory).unwrap();
    assert!(look(&mut running).unwrap().contains("it is there again"));
    assert_eq!(running.client().status().unwrap().protected(), Protected::Yes);
    assert!(second().message.contains("running already"), "with a new lock");

    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "somebody's file").unwrap();
    assert!(look(&mut running).unwrap().contains("another file"));
    assert_eq!(look(&mut running), None);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "somebody's file");
    std::fs::remove_file(&path).unwrap();
    assert!(look(&mut running).unwrap().contains("it is there again"));
    drop(running.server.take());
    assert!(!directory.exists(), "what it made is gone");
}

/// Another box gets the lock between two looks. The first box reports that box's process,
/// and does not take the socket back.
#[test]
fn a_name_that_another_box_has_got_is_left_to_it() {
    let mut running = Box::start(0);
    let path = running.path.clone();
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(path.with_extension("sock.lock")).unwrap();
    let other = control::listen_and_stop(&path, channel().0, Arc::new(|| {}), Arc::new(|| {}));
    let other = other.unwrap_or_else(|failure| panic!("{failure}"));
    let news = running.server.as_mut().unwrap().look().unwrap();
    assert!(
        news.contains(&format!("taken by another box, process {}", std::process::id())),
        "{news}"
    );
    drop(running.server.take());
    assert!(path.exists() && path.with_extension("sock.lock").exists(), "they are the other one's");
    drop(other);
}

#[test]
fn a_box_does_not_remove_another_ones_socket() {
    let mut running = Box::start(0);
    std::fs::remove_file(&running.path).unwrap();
    let other = UnixListener::bind(&running.path).unwrap();
    drop(running.server.take());
    assert!(running.path.exists());
    drop(other);
}

#[test]
fn a_socket_that_a_killed_box_left_is_replaced_and_one_in_use_is_not() {
    let scratch = Scratch::new();
    let path = scratch.0.join("box.sock");
    let listen = || control::listen_and_stop(&path, channel().0, Arc::new(|| {}), Arc::new(|| {}));
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "nobody listens there");
    let first = listen().unwrap_or_else(|failure| panic!("{failure}"));
    let second = refusal(listen());
    assert_eq!(second.code, exit::UNAVAILABLE);
    let holder =
        format!("running already with this control socket: process {}", std::process::id());
    assert!(second.message.contains(&holder), "{second}");
    drop(first);

    std::fs::write(&path, "somebody's file").unwrap();
    let refused = refusal(listen());
    assert!(refused.message.contains("not a socket"), "{refused}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "somebody's file");

    let long = scratch.0.join("x".repeat(120));
    let refused =
        refusal(control::listen_and_stop(&long, channel().0, Arc::new(|| {}), Arc::new(|| {})));
    assert!(refused.message.contains("at most 107 bytes"), "{refused}");
}
