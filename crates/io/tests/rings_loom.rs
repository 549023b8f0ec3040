//! Ring and doorbell under every interleaving: `make loom` runs it with `--cfg loom`.
//! Without, the same scenarios run once each on real threads.

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
    written: AtomicU32,
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
            written: word(),
            tail: word(),
            head: word(),
            entries: [AtomicU64::new(0), AtomicU64::new(0)],
            sleeps: word(),
            bell: word(),
        })
    }

    fn memory(&self) -> Memory<'_> {
        Memory {
            written: &self.written,
            tail: &self.tail,
            head: &self.head,
            entries: &self.entries,
        }
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

/// A buffer of the arena: only the side that has the buffer reads and writes it. Loom
/// fails if two do at a time, or without an order.
#[cfg(loom)]
struct Buffer(loom::cell::UnsafeCell<u64>);
#[cfg(not(loom))]
struct Buffer(std::cell::UnsafeCell<u64>);

// SAFETY: the rings give the buffer to one thread at a time: that is what the test is
// about.
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

/// A buffer of the arena goes to the other side, is changed there, comes back, and goes
/// again: each side sees all that the other wrote.
#[test]
fn a_buffer_belongs_to_one_side_at_a_time() {
    model(|| {
        let (there, back) = (Ring::new(), Ring::new());
        let buffer = Arc::new(Buffer::new());
        let (other_there, other_back, other_buffer) = (there.clone(), back.clone(), buffer.clone());
        let guest = thread::spawn(move || {
            let (mut rx, mut tx) =
                (Consumer::new(other_there.memory()), Producer::new(other_back.memory()));
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

/// A producer puts something in and rings if it must; the consumer goes to sleep if it
/// may. The consumer never sleeps on a ring that is not empty without having been rung
/// for.
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

/// The record of who has a buffer: the manager, or the guest. The record outlives the
/// manager.
struct Record([AtomicU32; 3]);

impl Record {
    fn is_guests(&self, buffer: u32) -> bool {
        self.0[buffer as usize].load(Ordering::Relaxed) == 1
    }

    fn set(&self, buffer: u32, is_guests: bool) {
        self.0[buffer as usize].store(u32::from(is_guests), Ordering::Release);
    }
}

/// An incarnation of the manager: takes the buffers that came back, then gives away its
/// own, in the orders that `holdfast_io::ring` tells. The manager gets as far as `steps`.
fn live(
    rx: &mut Producer<'_>,
    tx: &mut Consumer<'_>,
    record: &Record,
    buffers: &[Buffer; 3],
    mut steps: u32,
) -> bool {
    let mut lives = || {
        steps = steps.saturating_sub(1);
        steps > 0
    };
    let mut has_taken = false;
    while let Some(got) = tx.pop().expect("the ring is sound") {
        if !lives() {
            return false;
        }
        if record.is_guests(got.buffer) {
            record.set(got.buffer, false);
            buffers[got.buffer as usize].add(1);
        }
        has_taken = true;
        if !lives() {
            return false;
        }
    }
    if has_taken {
        tx.release();
    }
    if !lives() {
        return false;
    }
    for buffer in 0..3 {
        if record.is_guests(buffer) {
            continue;
        }
        buffers[buffer as usize].add(1);
        if !rx.push(descriptor(buffer)) {
            break;
        }
        if !lives() {
            return false;
        }
        record.set(buffer, true);
        if !lives() {
            return false;
        }
    }
    rx.publish();
    lives()
}

/// A manager gives buffers to a guest that sends them back, is killed at any step, and is
/// adopted while the guest goes on. Neither side touches a buffer that the other has, and
/// none is lost.
#[test]
fn a_dead_side_is_adopted() {
    for steps in 1..12 {
        model(move || {
            let (there, back) = (Ring::new(), Ring::new());
            let word = || AtomicU32::new(0);
            let record = Arc::new(Record([word(), word(), word()]));
            let buffers = Arc::new([Buffer::new(), Buffer::new(), Buffer::new()]);
            let (guest_there, guest_back, guest_buffers) =
                (there.clone(), back.clone(), buffers.clone());
            let guest = thread::spawn(move || {
                let (mut rx, mut tx) =
                    (Consumer::new(guest_there.memory()), Producer::new(guest_back.memory()));
                // A bounded number of looks: the guest need not see everything.
                let mut held = Vec::new();
                for _ in 0..2 {
                    if let Some(got) = rx.pop().expect("the ring is sound") {
                        rx.release();
                        guest_buffers[got.buffer as usize].add(10);
                        held.push(got.buffer);
                    }
                    if let Some(buffer) = held.pop()
                        && !tx.push(descriptor(buffer))
                    {
                        held.push(buffer);
                    }
                    tx.publish();
                    thread::yield_now();
                }
                held
            });
            let (host_there, host_back) = (there.clone(), back.clone());
            let (host_record, host_buffers) = (record.clone(), buffers.clone());
            let host = thread::spawn(move || {
                let (mut rx, mut tx) =
                    (Producer::new(host_there.memory()), Consumer::new(host_back.memory()));
                live(&mut rx, &mut tx, &host_record, &host_buffers, steps);
            });
            host.join().unwrap();
            let is_guests = |descriptor: Descriptor| record.is_guests(descriptor.buffer);
            let mut rx = Producer::adopt(there.memory(), is_guests).expect("the ring is sound");
            let mut tx = Consumer::adopt(back.memory(), |descriptor| !is_guests(descriptor))
                .expect("the ring is sound");
            live(&mut rx, &mut tx, &record, &buffers, u32::MAX);
            let held = guest.join().unwrap();
            // Every buffer is in one place.
            let mut places = [0; 3];
            let mut count = |buffer: u32| {
                assert!(record.is_guests(buffer));
                places[buffer as usize] += 1;
            };
            held.into_iter().for_each(&mut count);
            for ring in [&there, &back] {
                let mut rest = Consumer::new(ring.memory());
                while let Some(got) = rest.pop().expect("the ring is sound") {
                    count(got.buffer);
                }
            }
            for (buffer, places) in places.into_iter().enumerate() {
                assert_eq!(
                    places,
                    u32::from(record.is_guests(buffer as u32)),
                    "buffer {buffer} after {steps} steps"
                );
            }
        });
    }
}
