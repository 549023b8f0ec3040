//! The books of a bench: holdings of flows in shared state, and counts of functions.

use super::Bench;
use crate::shared::{Note, PoolEffect, SharedField};

/// A pool, gauge or table: its function and field, and what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Books {
    /// Name of the function.
    pub function: &'static str,
    /// Name of the field.
    pub field: &'static str,
    /// The numbers of a pool that flows hold; the flows in each item of a gauge; of a
    /// table, the number of its entries.
    pub values: Vec<i64>,
}

/// A counter of a function: its field, its name, and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Count {
    /// Name of the field.
    pub field: &'static str,
    /// Name of the counter.
    pub name: String,
    /// The count.
    pub value: u64,
}

impl Bench {
    fn visit(&mut self, mut visit: impl FnMut(&'static str, &'static str, SharedField<'_>)) {
        for function in self.chain.functions_mut() {
            let name = function.name();
            function.shared().visit(&mut |field, shared| visit(name, field, shared));
        }
    }

    /// The holdings of flows in each pool and each gauge.
    pub fn books(&mut self) -> Vec<Books> {
        let mut books = Vec::new();
        self.visit(|function, field, shared| {
            let values = match shared {
                SharedField::Pool(pool) => {
                    let (size, backend) = (pool.size(), pool.backend());
                    (0..size).filter(|number| backend.is_held(*number)).map(i64::from).collect()
                }
                SharedField::Gauge(part) => part.own().to_vec(),
                _ => return,
            };
            books.push(Books { function, field, values });
        });
        books
    }

    /// The number of entries of each table.
    pub fn tables(&mut self) -> Vec<Books> {
        let mut tables = Vec::new();
        self.visit(|function, field, shared| {
            if let SharedField::Table(entries) = shared {
                tables.push(Books { function, field, values: vec![entries as i64] });
            }
        });
        tables
    }

    /// Flows in each item of the last gauge.
    pub fn gauge(&mut self) -> Vec<i64> {
        let mut values = Vec::new();
        self.visit(|_, _, shared| {
            if let SharedField::Gauge(part) = shared {
                values = part.own().to_vec();
            }
        });
        values
    }

    /// The effects of the pools, in order.
    pub fn effects(&mut self) -> Vec<PoolEffect> {
        let mut effects = Vec::new();
        self.visit(|_, _, shared| {
            if let SharedField::Pool(pool) = shared {
                effects.extend(core::iter::from_fn(|| pool.backend().poll_effect()));
            }
        });
        effects
    }

    /// Numbers that pools could lease now, over all functions.
    pub fn free_numbers(&mut self) -> u32 {
        let mut free = 0;
        self.visit(|_, _, shared| {
            if let SharedField::Pool(pool) = shared {
                free += pool.backend().available();
            }
        });
        free
    }

    /// The log entries of functions: their number and the port, or their text, with the
    /// packet's addresses.
    pub fn logged(&mut self) -> Vec<String> {
        let line = |note: &Note| match note.text.is_empty() {
            true => format!("{} {} {}", note.about, note.ingress, note.key),
            false => format!("{} {}", note.key, String::from_utf8_lossy(&note.text)),
        };
        self.notes().iter().map(line).collect()
    }

    /// The log entries of functions.
    pub fn notes(&mut self) -> Vec<Note> {
        let mut notes = Vec::new();
        self.visit(|_, _, shared| {
            if let SharedField::Log(log) = shared {
                notes.extend(log.take());
            }
        });
        notes
    }

    /// All counters, in order.
    pub fn counted(&mut self) -> Vec<Count> {
        let mut all = Vec::new();
        self.visit(|_, field, shared| {
            if let SharedField::Counters(counters) = shared {
                let of = |(name, value): (&str, u64)| Count { field, name: name.into(), value };
                all.extend(counters.report().map(of));
            }
        });
        all
    }

    /// A counter, by its name; of several with one name, the last.
    ///
    /// # Panics
    /// If no function has a counter of this name.
    pub fn counter(&mut self, name: &str) -> u64 {
        let all = self.counted();
        let found = all.iter().rev().find(|counted| counted.name == name);
        found.unwrap_or_else(|| panic!("there is no counter `{name}`")).value
    }
}
