//! A state server and its clients, however badly they are treated.

mod hostile;
mod lists;
mod random;
