//! Ring and doorbell under every interleaving: `make loom` runs it with `--cfg loom`. Without, the same scenarios run once each on real threads.

use holdfast_io::doorbell::{may_sleep, must_ring};
use holdfast_io::ring::{Consumer, Descriptor, Memory, Producer};
#[cfg(loom)]
use loom::{
    sync::Arc,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    thread,
};
#[cfg(not(loom))]
use std::{
    sync::Arc,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    thread,
};

#[cfg(loom)]
fn model(scenario: impl Fn() + Sync + Send + 'static) {
    loom::model(scenario);
}

#[cfg(not(loom))]
fn model(scenario: impl Fn()) {
    for _ in 0..1000 {
        scenario();
    }
}

struct Ring {
    tail: AtomicU32,
    head: AtomicU32,
    entries: [AtomicU64; 2],
    sleeps: AtomicU32,
    bell: AtomicU32,
}

impl Ring {
    fn new() -> Arc<Ring> {
        let word = || AtomicU32::new(0);
        Arc::new(Ring {
            tail: word(),
            head: word(),
            entries: [AtomicU64::new(0), AtomicU64::new(0)],
            sleeps: word(),
            bell: word(),
        })
    }

    fn memory(&self) -> Memory<'_> {
        Memory { tail: &self.tail, head: &self.head, entries: &self.entries }
    }
}

fn descriptor(number: u32) -> Descriptor {
    Descriptor { buffer: number, offset: number as u16, len: 7 }
}

/// Three descriptors through a ring of two: each arrives whole, once, in order.
#[test]
fn descriptors_arrive_once_and_in_order() {
    model(|| {
        let ring = Ring::new();
        let other = ring.clone();
        let producer = thread::spawn(move || {
            let mut producer = Producer::new(other.memory());
            let mut next = 0;
            while next < 3 {
                if producer.push(descriptor(next)) {
                    producer.publish();
                    next += 1;
                } else {
                    thread::yield_now();
                }
            }
        });
        let mut consumer = Consumer::new(ring.memory());
        let mut expected = 0;
        while expected < 3 {
            match consumer.pop() {
                Ok(Some(got)) => {
                    assert_eq!(got, descriptor(expected));
                    expected += 1;
                    consumer.release();
                }
                Ok(None) => thread::yield_now(),
                Err(corrupt) => panic!("{corrupt:?}"),
            }
        }
        producer.join().unwrap();
        assert_eq!(consumer.pop(), Ok(None));
    });
}

/// One puts something in and rings if it must, the other goes to sleep if it may: it never sleeps on a full ring without having been rung for.
#[test]
fn no_wake_up_is_lost() {
    model(|| {
        let ring = Ring::new();
        let other = ring.clone();
        let producer = thread::spawn(move || {
            let mut producer = Producer::new(other.memory());
            assert!(producer.push(descriptor(1)));
            producer.publish();
            if must_ring(&other.sleeps) {
                other.bell.store(1, Ordering::SeqCst);
            }
        });
        let mut consumer = Consumer::new(ring.memory());
        let slept = may_sleep(&ring.sleeps, || consumer.is_empty());
        producer.join().unwrap();
        let rung = ring.bell.load(Ordering::SeqCst) == 1;
        assert!(!slept || rung, "asleep, and nobody rang");
        assert_eq!(consumer.pop(), Ok(Some(descriptor(1))));
    });
}

/// A counter that no sound peer could have written is noticed, not followed.
#[test]
fn impossible_counters_are_noticed() {
    model(|| {
        let ring = Ring::new();
        ring.tail.store(9, Ordering::Relaxed);
        assert!(Consumer::new(ring.memory()).pop().is_err());
        let ring = Ring::new();
        ring.head.store(5, Ordering::Relaxed);
        let mut producer = Producer::new(ring.memory());
        assert!(producer.room().is_err());
        assert!(!producer.push(descriptor(1)));
    });
}
