//! Events, and what they are compared with.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use bytes::BytesMut;
use tidewater_client::{Link, SpaceSubscription, SubscriptionStart};
use tidewater_protocol::event::put_event;

use super::{Job, JobOutcome, PAYLOAD};

const SPACE: &str = "bench";
const KEPT: &str = "kept";

/// Events between two looks at the clock.
const GLANCE: u64 = 64;

/// How often a publisher that keeps to a rate publishes.
const STEP: Duration = Duration::from_millis(5);

/// Subscribers begin with the first event, so publishers go on longer by this share.
const OVERLAP: f64 = 0.25;

/// How long nothing may come.
const PATIENCE: Duration = Duration::from_secs(10);

fn subject(publisher: u32) -> String {
    format!("unit.{publisher}")
}

/// Bytes to six sockets, counted as the events that they would be.
pub(super) fn raw_to_six(job: &Job) -> anyhow::Result<JobOutcome> {
    let mut event = BytesMut::new();
    put_event(&mut event, &subject(0), None, &[0; PAYLOAD])?;
    let chunk = vec![0; 64 << 10];
    let mut sockets = Vec::new();
    let mut readers = Vec::new();
    for _ in 0..6 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        sockets.push(TcpStream::connect(listener.local_addr()?)?);
        let (mut stream, _) = listener.accept()?;
        readers.push(thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            let mut read = 0;
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                read += count;
            }
            read
        }));
    }
    let begun = Instant::now();
    while begun.elapsed().as_secs_f64() < job.seconds {
        for socket in &mut sockets {
            socket.write_all(&chunk)?;
        }
    }
    drop(sockets);
    let mut read = 0;
    for reader in readers {
        let joined = reader.join();
        read += joined.map_err(|_| anyhow::anyhow!("a thread has panicked"))?;
    }
    Ok(JobOutcome::counted(
        (read / event.len()) as u64,
        begun.elapsed(),
    ))
}

/// Each event carries its publisher's number for it.
pub(super) fn publish(
    job: &Job,
    link: &Link,
    publisher: u32,
    per_second: Option<u32>,
) -> anyhow::Result<JobOutcome> {
    let subject = subject(publisher);
    let mut payload = [b'x'; PAYLOAD];
    let begun = Instant::now();
    let length = Duration::from_secs_f64(job.seconds * (1.0 + OVERLAP));
    let mut number: u64 = 0;
    while begun.elapsed() < length {
        let until = match per_second {
            None => number + GLANCE,
            Some(rate) => (begun.elapsed().as_secs_f64() * f64::from(rate)) as u64,
        };
        while number < until {
            payload[..8].copy_from_slice(&number.to_le_bytes());
            number += 1;
            link.publish(SPACE, &subject, &payload)?;
        }
        if per_second.is_some() {
            thread::sleep(STEP);
        }
    }
    link.flush()?;
    Ok(JobOutcome::counted(number, begun.elapsed()))
}

/// Whoever hears all of it.
pub(super) struct Listener {
    subscription: SpaceSubscription,
}

impl Listener {
    pub(super) fn start(link: &Link) -> anyhow::Result<Listener> {
        let subscription = link.subscribe(SPACE, ">", SubscriptionStart::Now)?;
        Ok(Listener { subscription })
    }

    pub(super) fn listen(mut self, job: &Job) -> anyhow::Result<JobOutcome> {
        let mut next: HashMap<String, u64> = HashMap::new();
        let mut count: u64 = 0;
        let mut gaps = 0;
        let length = Duration::from_secs_f64(job.seconds);
        let mut begun = None;
        while let Some(event) = self.subscription.recv(PATIENCE) {
            let begun = *begun.get_or_insert_with(Instant::now);
            count += 1;
            let number = event.payload().first_chunk().copied();
            let number = u64::from_le_bytes(number.unwrap_or_default());
            let expected = match next.get_mut(event.subject()) {
                Some(expected) => expected,
                None => next.entry(event.subject().to_owned()).or_insert(number),
            };
            ensure!(
                number >= *expected,
                "{}: event {number} came behind {expected}",
                event.subject()
            );
            gaps += number - *expected;
            *expected = number + 1;
            if count.is_multiple_of(GLANCE) && begun.elapsed() >= length {
                break;
            }
        }
        let took = begun.map_or(length, |it| it.elapsed());
        Ok(JobOutcome {
            missed: gaps,
            ..JobOutcome::counted(count, took)
        })
    }
}

/// Each thread waits until its events are kept before it publishes the next ones.
pub(super) fn keep(
    job: &Job,
    link: &Link,
    threads: u32,
    at_once: u32,
) -> anyhow::Result<JobOutcome> {
    let begun = Instant::now();
    let length = Duration::from_secs_f64(job.seconds);
    let threads = (0..threads).map(|thread| {
        let link = link.clone();
        thread::spawn(move || -> anyhow::Result<Vec<f64>> {
            let subject = subject(thread);
            let payload = [b'x'; PAYLOAD];
            let events = vec![(subject.as_str(), &payload[..]); at_once as usize];
            let mut times = Vec::new();
            while begun.elapsed() < length {
                let started = Instant::now();
                link.publish_durable(KEPT, &events, None)?;
                times.push(started.elapsed().as_secs_f64() * 1e6);
            }
            Ok(times)
        })
    });
    let threads: Vec<_> = threads.collect();
    let mut times = Vec::new();
    for thread in threads {
        let joined = thread.join();
        times.extend(joined.map_err(|_| anyhow::anyhow!("a thread has panicked"))??);
    }
    let outcome = JobOutcome::of_times(times, begun.elapsed());
    Ok(JobOutcome {
        count: outcome.count * u64::from(at_once),
        ..outcome
    })
}
