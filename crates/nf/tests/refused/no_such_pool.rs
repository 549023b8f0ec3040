// `Shared` has no field of the type `Pool<Others>`
include!("../cases/leaser.rs");

leaser!(Others, |_| Mapping::default(), |flow, shared, cx| {
    let _ = (flow.port.number(), shared, cx.now());
});
