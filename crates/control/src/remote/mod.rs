//! The control API, as both sides know it: the messages of its .proto file, what stands for them in JSON, and the client's half.
//!
//! The types are generated, and kept as a file: `tests/generated.rs` says when it is not what the .proto file gives, and makes it anew.

mod client;
pub mod convert;
mod endpoint;

/// The types of the .proto file.
#[allow(missing_docs, unreachable_pub, clippy::all)]
#[rustfmt::skip]
pub mod api;

pub use client::{Fetched, TlsConnection, channel_over, connect_tls, fetch, is_inside};
pub(crate) use client::{RemoteClient, Streamed};
pub use endpoint::{CONTROL_PORT, Endpoint, control_address};

/// Without its contents: they are secrets.
impl std::fmt::Debug for api::File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("path", &self.path).finish_non_exhaustive()
    }
}

/// How [`api::Protected`] stands in the status object.
mod protected {
    use super::api::Protected;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    const WORDS: [(Protected, &str); 3] =
        [(Protected::Yes, "yes"), (Protected::No, "no"), (Protected::ReSynchronising, "re-synchronising")];

    pub(super) fn serialize<S: Serializer>(value: &i32, serializer: S) -> Result<S::Ok, S::Error> {
        let word = WORDS.iter().find(|(known, _)| *known as i32 == *value).map_or("no", |(_, word)| word);
        word.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
        let word = String::deserialize(deserializer)?;
        Ok(WORDS.iter().find(|(_, known)| *known == word).map_or(0, |(known, _)| *known as i32))
    }
}
