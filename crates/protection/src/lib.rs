//! protection
