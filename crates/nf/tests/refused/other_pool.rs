// mismatched types
include!("../cases/leaser.rs");

leaser!(Others, |port| Mapping { port }, |flow, shared, cx| {
    let _ = (flow.port.number(), shared, cx.now());
});
