//! `forward`: lets everything pass; the box is a plain router.

use holdfast_nf::{ConfigError, Context, NetworkFunction, Open, Opening, Packet, Verdict};
use schemars::JsonSchema;
use serde::Deserialize;

/// The configuration: empty.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ForwardConfig {}

/// A function that forwards; see the module.
#[derive(Debug)]
pub struct Forward;

impl NetworkFunction for Forward {
    const NAME: &'static str = "forward";
    type Config = ForwardConfig;
    type Flow = ();
    type Shared = ();

    fn new(_config: ForwardConfig) -> Result<Forward, ConfigError> {
        Ok(Forward)
    }

    fn shared(&self) {}

    fn open(&self, _packet: &Packet, _shared: &mut (), _cx: &mut Opening<'_>) -> Open<()> {
        Open::Accept(())
    }

    fn process(
        &self,
        _packet: &mut Packet,
        _flow: &mut (),
        _shared: &mut (),
        _cx: &mut Context,
    ) -> Verdict {
        Verdict::Forward
    }
}
