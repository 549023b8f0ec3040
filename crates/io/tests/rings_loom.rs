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

/// A buffer of the arena: whoever has it reads and writes it, and nobody else does. Loom fails if two do at a time, or without an order.
#[cfg(loom)]
struct Buffer(loom::cell::UnsafeCell<u64>);
#[cfg(not(loom))]
struct Buffer(std::cell::UnsafeCell<u64>);

// SAFETY: the rings give it to one thread at a time: that is what the test is about.
unsafe impl Sync for Buffer {}

impl Buffer {
    fn new() -> Buffer {
        #[cfg(loom)]
        return Buffer(loom::cell::UnsafeCell::new(0));
        #[cfg(not(loom))]
        Buffer(std::cell::UnsafeCell::new(0))
    }

    fn add(&self, number: u64) -> u64 {
        let act = |bytes: *mut u64| {
            // SAFETY: the caller has the buffer.
            unsafe {
                *bytes += number;
                *bytes
            }
        };
        #[cfg(loom)]
        return self.0.with_mut(act);
        #[cfg(not(loom))]
        act(self.0.get())
    }
}

fn take(consumer: &mut Consumer<'_>) -> Descriptor {
    loop {
        match consumer.pop() {
            Ok(Some(got)) => {
                consumer.release();
                return got;
            }
            Ok(None) => thread::yield_now(),
            Err(corrupt) => panic!("{corrupt:?}"),
        }
    }
}

/// A buffer of the arena goes to the other side, is changed there, comes back, and goes again: each side sees all that the other wrote.
#[test]
fn a_buffer_belongs_to_one_side_at_a_time() {
    model(|| {
        let (there, back) = (Ring::new(), Ring::new());
        let buffer = Arc::new(Buffer::new());
        let (other_there, other_back, other_buffer) = (there.clone(), back.clone(), buffer.clone());
        let guest = thread::spawn(move || {
            let (mut rx, mut tx) = (Consumer::new(other_there.memory()), Producer::new(other_back.memory()));
            for round in 0..2 {
                assert_eq!(take(&mut rx), descriptor(round));
                assert_eq!(other_buffer.add(10), u64::from(round) * 11 + 11);
                assert!(tx.push(descriptor(round)));
                tx.publish();
            }
        });
        let (mut tx, mut rx) = (Producer::new(there.memory()), Consumer::new(back.memory()));
        for round in 0..2 {
            assert_eq!(buffer.add(1), u64::from(round) * 11 + 1);
            assert!(tx.push(descriptor(round)));
            tx.publish();
            assert_eq!(take(&mut rx), descriptor(round));
        }
        guest.join().unwrap();
        assert_eq!(buffer.add(0), 22);
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
