//! The wire's properties: against truncation at every byte, against another
//! implementation, against naive models.

mod bfd;
mod builders;
mod checksums;
mod differential;
mod frames;
mod keys;
mod nsh;
mod selectors;
mod truncation;
