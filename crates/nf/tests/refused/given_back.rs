// no method named `give_back` found for struct `holdfast_nf::Pool<P>` in the current
// scope
include!("../cases/leaser.rs");

leaser!(Ports, |port| Mapping { port }, |flow, shared, cx| {
    let _ = cx.now();
    shared.ports.give_back(core::mem::take(&mut flow.port));
});
