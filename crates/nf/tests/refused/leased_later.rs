// mismatched types
include!("../cases/leaser.rs");

leaser!(Ports, |port| Mapping { port }, |flow, shared, cx| {
    if let Lease::Granted(port) = shared.ports.lease(cx) {
        flow.port = port;
    }
});
