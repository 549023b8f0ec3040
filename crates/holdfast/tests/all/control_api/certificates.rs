//! Certificates: whom they let in, and what the others are told.

use super::*;

/// A certificate of the right authority that names no role of its holder opens nothing.
#[test]
fn a_certificate_without_a_role_is_told_so() {
    let running = Box::start();
    let directory = running.scratch.path().join("tls");
    let key = rcgen::KeyPair::from_pem(&std::fs::read_to_string(directory.join("ca.key")).unwrap())
        .unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_pem(
        &std::fs::read_to_string(directory.join("ca.pem")).unwrap(),
        key,
    )
    .unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "nobody");
    params.distinguished_name.push(rcgen::DnType::OrganizationalUnitName, "root");
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let own = rcgen::KeyPair::generate().unwrap();
    let certificate = params.signed_by(&own, &issuer).unwrap();
    let wall = directory.join("wall");
    std::fs::write(wall.join(CERTIFICATE_FILE), certificate.pem()).unwrap();
    std::fs::write(wall.join(KEY_FILE), own.serialize_pem()).unwrap();
    let failure = refusal(running.client("wall").status());
    assert_eq!(failure.code, exit::PERMISSION);
    assert!(failure.message.contains("viewer, operator, host"), "{failure}");
}

/// A client without a certificate, or with one that is not good, is refused in the
/// handshake and counted under the reason.
#[test]
fn certificates_that_are_not_good_are_refused() {
    let running = Box::start();
    let directory = running.scratch.path();
    let (mine, other, old) =
        (directory.join("tls/alice"), directory.join("other"), directory.join("tls/old"));
    let operator = ["operator:mallory".parse::<Subject>().unwrap()];
    certify(&other, &operator, 30, OffsetDateTime::now_utc()).unwrap();
    let long_ago = OffsetDateTime::now_utc() - time::Duration::days(60);
    certify(&directory.join("tls"), &["operator:old".parse().unwrap()], 30, long_ago).unwrap();
    for (shown, counted) in [
        (None, "no_certificate"),
        (Some(other.join("mallory")), "certificate_refused"),
        (Some(old.clone()), "certificate_not_now"),
    ] {
        let mut stream = running.raw(by_hand(&mine, shown.as_deref()));
        let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").and_then(|()| stream.flush());
        is_closed(stream);
        until(counted, || running.refused(counted) == 1);
    }
    // A host's certificate is for servers and clients, an operator's for clients alone:
    // nobody can play the box with it.
    let entry = ControlEntry { listen: "127.0.0.1:0".parse().unwrap(), tls: running.tls("alice") };
    let path = directory.join("second.sock");
    let mut second =
        control::listen_and_stop(&path, channel().0, Arc::new(|| {}), Arc::new(|| {})).unwrap();
    let failure = refusal(second.serve_remote(&entry, Limits::default()));
    assert!(
        failure.code == exit::CONFIGURATION && failure.message.contains("no host's certificate"),
        "{failure}"
    );
    running.still_answers();
}

/// The command says what is wrong and on which side, with the exit code that scripts look
/// at.
#[test]
fn a_client_says_why_it_is_not_heard() {
    let running = Box::start();
    let directory = running.scratch.path();
    let other = directory.join("other");
    certify(&other, &["operator:mallory".parse().unwrap()], 30, OffsetDateTime::now_utc()).unwrap();
    let ask = |place: &str, tls: TlsPaths| {
        let target = Target { control: Some(format!("https://{place}")), tls: Some(tls) };
        refusal(Client::to(&target).and_then(|client| client.status()))
    };
    let place = running.address.to_string();
    let strange = ask(&place, TlsPaths::in_directory(&other.join("mallory")));
    assert!(
        strange.code == exit::PERMISSION
            && strange.message.contains("not signed by the authority in"),
        "{strange}"
    );
    let elsewhere = ask(&format!("localhost:{}", running.address.port()), running.tls("alice"));
    assert!(
        elsewhere.code == exit::PERMISSION && elsewhere.message.contains("is not for `localhost`"),
        "{elsewhere}"
    );
    let missing = ask(&place, running.tls("nobody"));
    assert!(
        missing.code == exit::CONFIGURATION && missing.message.contains("there is no file"),
        "{missing}"
    );
    let mixed = TlsPaths { ca: other.join("ca.pem"), ..running.tls("alice") };
    assert_eq!(ask(&place, mixed).code, exit::CONFIGURATION);
    // A port that was free a moment ago: nobody listens there.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = ask(&free.to_string(), running.tls("alice"));
    assert!(
        nobody.code == exit::UNAVAILABLE && nobody.message.contains("nobody listens"),
        "{nobody}"
    );
    // Something else listens there.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap().to_string();
    let greeting = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = [0; 16];
        let _ = stream.read(&mut hello);
        let _ = stream.write_all(b"220 mail.example ESMTP\r\n");
        is_closed(stream);
    });
    let mail = ask(&place, running.tls("alice"));
    assert!(
        mail.code == exit::UNAVAILABLE && mail.message.contains("does not speak TLS"),
        "{mail}"
    );
    greeting.join().unwrap();
    for (control, tls) in [
        ("http://127.0.0.1:1", true),
        ("https://127.0.0.1:1", false),
        ("https://", true),
        ("/a/path", true),
    ] {
        let target =
            Target { control: Some(control.to_owned()), tls: tls.then(|| running.tls("alice")) };
        assert_eq!(refusal(Client::to(&target)).code, exit::USAGE, "{control}");
    }
}

/// New certificates are taken without a restart, and bad ones are not.
#[test]
fn certificates_are_read_again() {
    let running = Box::start();
    let server = running.server.as_ref().unwrap();
    let held = running.client("wall");
    held.ping().unwrap();
    let left = running.scratch.path().join("tls/left");
    let good = std::fs::read(left.join(CERTIFICATE_FILE)).unwrap();
    std::fs::write(left.join(CERTIFICATE_FILE), "nothing").unwrap();
    let said = server.reload().unwrap()();
    assert!(said.contains("stays as it is") && said.contains(CERTIFICATE_FILE), "{said}");
    running.still_answers();
    std::fs::write(left.join(CERTIFICATE_FILE), good).unwrap();
    assert!(server.reload().unwrap()().contains("has been read again"));
    held.ping().expect("a connection whose authority is trusted goes on");
    // From now on another authority is trusted.
    let other = running.scratch.path().join("other");
    certify(
        &other,
        &["left=127.0.0.1".parse().unwrap(), "viewer:new".parse().unwrap()],
        30,
        OffsetDateTime::now_utc(),
    )
    .unwrap();
    for file in [CA_FILE, CERTIFICATE_FILE, KEY_FILE] {
        std::fs::copy(other.join("left").join(file), left.join(file)).unwrap();
    }
    assert!(server.reload().unwrap()().contains("has been read again"));
    assert_eq!(refusal(running.client("wall").ping()).code, exit::PERMISSION);
    let new = Target {
        control: Some(format!("https://{}", running.address)),
        tls: Some(TlsPaths::in_directory(&other.join("new"))),
    };
    Client::to(&new).unwrap().ping().unwrap();
    let shut_out = refusal(held.ping());
    assert!(
        shut_out.code == exit::PERMISSION
            && shut_out.message.contains("`wall` is not trusted here any more"),
        "{shut_out}"
    );
    assert_eq!(running.refused("certificate_refused"), 1);
}
