//! The number of state servers, and the transport of their messages.

use super::{edited, said};
use holdfast::config;

/// The example under `rescue`, with a state server of these settings.
fn served(settings: &str) -> String {
    format!(
        "{}\nstate_server: {{ {settings} }}\n",
        edited("protection: nfvactor ", "protection: rescue ")
    )
}

#[test]
fn a_state_servers_messages_have_a_way() {
    for settings in [
        "transport: fabric",
        "transport: shared-memory",
        "transport: libfabric",
        "standby: none, transport: libfabric, provider: \"verbs;ofi_rxm\"",
        "transport: libfabric, provider: shm",
    ] {
        assert_eq!(said(&served(settings)), "", "{settings}");
    }
    let wrong = [
        ("provider: shm", "only `transport: libfabric` has a provider: leave `provider` out"),
        (
            "transport: shared-memory, provider: shm",
            "only `transport: libfabric` has a provider: leave `provider` out",
        ),
        (
            "transport: libfabric, provider: sockets",
            "libfabric's `sockets` crashes whoever is left when the other side ends: `tcp;ofi_rxm` does the same without that",
        ),
        (
            "transport: libfabric, provider: vrbs",
            "there is no provider `vrbs` for control messages: `tcp;ofi_rxm`, `net`, `shm`, `verbs;ofi_rxm`, `efa`",
        ),
    ];
    for (settings, expected) in wrong {
        let said = said(&served(settings));
        assert!(said.contains(expected) && said.starts_with("edge.yaml:"), "{settings}: {said}");
        assert!(said.contains("state_server:"), "the line is shown: {said}");
    }
}

#[test]
fn several_divide_the_flows() {
    for settings in
        ["servers: 1", "servers: 8, standby: none", "servers: 3, transport: shared-memory"]
    {
        assert_eq!(said(&served(settings)), "", "{settings}");
    }
    for (settings, found) in [("servers: 0", 0), ("servers: 9", 9)] {
        let said = said(&served(settings));
        assert!(
            said.contains(&format!("there can be 1 to 8 state servers, not {found}")),
            "{said}"
        );
        assert!(said.contains("state_server:"), "the line is shown: {said}");
    }
    let without_pages = |servers: u16| {
        let chains = edited(
            "protection: nfvactor ",
            "protection: { preset: nfvactor, shared: state-server } ",
        );
        format!("{chains}\nstate_server: {{ servers: {servers} }}\n")
    };
    assert_eq!(said(&without_pages(1)), "");
    let said = said(&without_pages(2));
    let expected = "several state servers divide the flows among them whose home is there, and no chain has such (`protection: rescue`)";
    assert!(said.contains(expected) && said.contains("state_server:"), "{said}");
}

#[test]
fn a_running_box_keeps_the_way() {
    let read =
        |text: &str| config::read("edge.yaml", text).unwrap_or_else(|mistake| panic!("{mistake}"));
    let cases = [
        (
            "servers: 2",
            "servers: 3",
            "`state_server.servers` is `2` in the running box and `3` here: it is changed by a restart only",
        ),
        (
            "transport: fabric",
            "transport: shared-memory",
            "`state_server.transport` is `fabric` in the running box and `shared-memory` here: it is changed by a restart only",
        ),
        (
            "transport: libfabric",
            "transport: libfabric, provider: net",
            "`state_server.provider` is `tcp;ofi_rxm` in the running box and `net` here: it is changed by a restart only",
        ),
    ];
    for (before, after, expected) in cases {
        let found = config::differences(&read(&served(before)), &read(&served(after)));
        let found: Vec<&str> =
            found.iter().map(|difference| difference.mistake.message.as_str()).collect();
        assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?}");
    }
    let same = ["transport: libfabric, provider: \"tcp;ofi_rxm\"", "transport: libfabric"]
        .map(|way| read(&served(way)));
    assert!(config::differences(&same[0], &same[1]).is_empty());
}
