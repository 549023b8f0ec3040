//! The NF API.
#![forbid(unsafe_code)]
