//! Calls, and what they are compared with.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tidewater_client::{Link, Request};

use super::{Job, JobOutcome};

pub(super) fn raw(job: &Job) -> anyhow::Result<JobOutcome> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let echo = thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut buffer = [0; 100];
        loop {
            stream.read_exact(&mut buffer)?;
            stream.write_all(&buffer)?;
        }
    });
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut buffer = [0; 100];
    let outcome = one_after_the_other(job, || {
        stream.write_all(&buffer)?;
        Ok(stream.read_exact(&mut buffer)?)
    });
    drop(stream);
    // It ends with the connection.
    let _ = echo.join();
    outcome
}

/// Again and again, as long as the job says.
pub(super) fn one_after_the_other(
    job: &Job,
    mut once: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<JobOutcome> {
    // The first ones wake everybody up.
    for _ in 0..100 {
        once()?;
    }
    let mut times = Vec::new();
    let begun = Instant::now();
    let mut last = begun;
    while last.duration_since(begun).as_secs_f64() < job.seconds {
        once()?;
        let now = Instant::now();
        times.push((now - last).as_secs_f64() * 1e6);
        last = now;
    }
    Ok(JobOutcome::of_times(times, last - begun))
}

pub(super) fn by_threads(
    job: &Job,
    threads: u32,
    pause: Duration,
    link: &Link,
    request: Arc<dyn Fn(u64) -> Request + Send + Sync>,
) -> anyhow::Result<JobOutcome> {
    if threads == 1 {
        let mut number = 0;
        return one_after_the_other(job, || {
            number += 1;
            link.call(&request(number))?;
            Ok(())
        });
    }
    let begun = Instant::now();
    let length = Duration::from_secs_f64(job.seconds);
    let threads = (0..threads).map(|index| {
        let (link, request) = (link.clone(), request.clone());
        thread::spawn(move || -> anyhow::Result<Vec<f64>> {
            let mut times = Vec::new();
            // Not all at the same moment.
            if !pause.is_zero() {
                thread::sleep(pause.mul_f64(f64::from(index % 64) / 64.0));
            }
            let mut number = u64::from(index) << 32;
            while begun.elapsed() < length {
                let started = Instant::now();
                number += 1;
                link.call(&request(number))?;
                times.push(started.elapsed().as_secs_f64() * 1e6);
                if !pause.is_zero() {
                    thread::sleep(pause);
                }
            }
            Ok(times)
        })
    });
    let threads: Vec<_> = threads.collect();
    let mut all = Vec::new();
    for thread in threads {
        let times = thread.join();
        let times = times.map_err(|_| anyhow::anyhow!("a thread has panicked"))??;
        all.extend(times);
    }
    Ok(JobOutcome::of_times(all, begun.elapsed()))
}
