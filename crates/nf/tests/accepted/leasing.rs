include!("../cases/leaser.rs");

leaser!(Ports, |port| Mapping { port }, |flow, shared, cx| {
    let _ = (flow.port.number(), shared, cx.now());
});
