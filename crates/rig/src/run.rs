//! One run from an empty folder to the report.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{anyhow, ensure};
use serde::Serialize;

use crate::Arguments;
use crate::accidents::Accidents;
use crate::application::Application;
use crate::between::{BALANCER, NAME, Relay, RigBalancer, dials};
use crate::chance::Chance;
use crate::cluster::Cluster;
use crate::device::Device;
use crate::judge::{CheckedCounts, Judge, JudgedCentre, Witness};
use crate::keeper::Keeper;
use crate::ledger::Ledger;
use crate::network::{Network, Weather};
use crate::office::Office;
use crate::program::Program;
use crate::providers::{Post, provider};
use crate::servers::{Ports, server};
use crate::stage::Stage;
use crate::world::{LIVE, PROVIDER, PUBLICATION, SCHEMA, USERS};

/// So many applications write to the centre at once.
const OFFICES: i64 = 2;
/// Rounds of syncs after which everybody must have come to rest.
const ROUNDS: usize = 50;

const PLAIN: Weather = plain("plain connection");
const TLS: Weather = encrypted("TLS connection");
const BALANCED: Weather = plain("connection to HAProxy");
const WEB: Weather = encrypted("HTTPS connection to HAProxy");
const RELAYED: Weather = encrypted("connection to the relay");
/// Some carry nobody yet, others one device after the other.
const LINE: Weather = encrypted("line to the relay");
/// Damage would reach PostgreSQL, which has no checksum on its connections either.
const DATABASE: Weather = Weather {
    name: "PostgreSQL connection",
    accidents: 3,
    damages: false,
};

const fn plain(name: &'static str) -> Weather {
    Weather {
        name,
        accidents: 35,
        damages: false,
    }
}

const fn encrypted(name: &'static str) -> Weather {
    Weather {
        name,
        accidents: 45,
        damages: true,
    }
}

/// What a run tells.
#[derive(Debug, Serialize)]
struct RigReport {
    seed: u64,
    /// How long things broke, and how long the whole took.
    broken_seconds: u64,
    seconds: u64,
    faults: BTreeMap<String, u64>,
    syncs: BTreeMap<String, u64>,
    checked: CheckedCounts,
    findings: usize,
    first_findings: Vec<String>,
}

/// Runs; true if nothing was found.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    ensure!(
        arguments.devices > 0 && arguments.servers > 0,
        "somebody has to sync with somebody"
    );
    let temporary = tempfile::Builder::new()
        .prefix("tidewater-rig-")
        .tempdir()?;
    let folder = match &arguments.folder {
        Some(folder) => {
            std::fs::create_dir_all(folder)?;
            std::fs::canonicalize(folder)?
        }
        None => temporary.path().to_owned(),
    };
    let seed = arguments
        .seed
        .unwrap_or_else(|| RandomState::new().hash_one(0) >> 32);
    eprintln!("seed {seed}, in {}", folder.display());
    let result = break_and_judge(arguments, seed, &folder);
    let is_good = result.as_ref().is_ok_and(|report| report.findings == 0);
    if !is_good && arguments.folder.is_none() {
        eprintln!("kept: {}", temporary.keep().display());
    }
    print(&result?, arguments.json)?;
    Ok(is_good)
}

fn break_and_judge(arguments: &Arguments, seed: u64, folder: &Path) -> anyhow::Result<RigReport> {
    let mut chance = Chance::new(seed);
    let stage = Arc::new(Stage::new(folder)?);
    let program = Program::find(arguments.program.as_deref(), folder)?;
    let keeper = Arc::new(Keeper::start()?);
    let mut cluster = Cluster::start(&stage, |port| {
        Network::start(&stage, DATABASE, &[port], chance.fork())
    })?;
    let mut post = Post::start()?;
    let tls = ["cert", "--out", "tls", "--host", "127.0.0.1", NAME];
    let tls = program.done(&tls)?.stdout;
    let ports: Vec<_> = (0..arguments.servers)
        .map(|_| Ports::free())
        .collect::<Result<_, _>>()?;
    let balancer = RigBalancer::new(folder, &ports)?;
    let relay = Relay::new(folder, &program)?;
    let mut network =
        |weather, targets: &[u16]| Network::start(&stage, weather, targets, chance.fork());
    let of_each = |port: fn(&Ports) -> u16| ports.iter().map(port).collect::<Vec<_>>();
    let networks = [
        network(PLAIN, &of_each(|it| it.plain))?,
        network(TLS, &of_each(|it| it.tls))?,
        network(BALANCED, &[balancer.remotes])?,
        network(WEB, &[balancer.web])?,
        network(RELAYED, &[relay.devices])?,
        network(LINE, &[relay.servers])?,
    ];
    let [direct, tls_direct, balanced, web, relayed, lines] = networks.each_ref().map(|it| it.port);
    let roads = [
        format!("tcp://127.0.0.1:{direct}"),
        format!("tls://127.0.0.1:{tls_direct}"),
        format!("tcp://127.0.0.1:{balanced}"),
        format!("https://127.0.0.1:{web}"),
        format!("tls://{NAME}:{relayed}"),
        format!("https://{NAME}:{relayed}"),
    ];
    let more = format!(
        "{tls}{}[live]\nnats = {:?}\n{LIVE}",
        dials(lines),
        post.url()
    );
    prepare(&cluster, &program, folder, &ports, &more)?;
    stage.breaks.store(true, Ordering::SeqCst);
    let servers: Vec<_> = ports
        .iter()
        .enumerate()
        .map(|(number, ports)| Arc::new(server(&program, number, *ports)))
        .collect();
    let providers = [0, 1].map(|number| Arc::new(provider(&program, number, roads[0].clone())));
    let between = [balancer.standing, relay.standing].map(Arc::new);
    let standing: Vec<_> = servers.iter().chain(&providers).chain(&between).collect();
    let supervised: Vec<_> = standing
        .iter()
        .map(|it| it.supervise(&stage, &keeper))
        .collect();
    let mut players = Players::start(arguments, &stage, &program, &keeper, &roads, &mut chance)?;
    players.add_offices(&stage, &cluster.url(), &mut chance);

    let mut accidents = Accidents {
        stage: &stage,
        chance: chance.fork(),
        cluster: &mut cluster,
        servers: &servers,
        networks: &networks,
        providers: &providers,
        balancer: &between[0],
        relay: &between[1],
        post: &mut post,
    };
    let broken = accidents.happen_for(Duration::from_secs(arguments.seconds));
    stage.breaks.store(false, Ordering::SeqCst);
    let broken_seconds = stage.elapsed().as_secs();
    let judged = broken
        .and_then(|()| cluster.heal())
        .inspect(|()| {
            for provider in &providers {
                provider.kill(Duration::ZERO);
            }
        })
        .and_then(|()| judge(&stage, &cluster, players));
    cluster.keep_logs();
    if judged.is_err() || stage.findings().1 > 0 {
        cluster.keep_database()?;
    }
    stage.is_over.store(true, Ordering::SeqCst);
    for one in supervised {
        joined(one)??;
    }
    for one in standing {
        find_panics(&stage, &one.log())?;
    }
    let (first_findings, findings) = stage.findings();
    Ok(RigReport {
        seed,
        broken_seconds,
        seconds: stage.elapsed().as_secs(),
        faults: stage.faults(),
        syncs: stage.syncs(),
        checked: judged?,
        findings,
        first_findings,
    })
}

/// Makes tables, the servers' configurations, which have `more` in common, and users.
fn prepare(
    cluster: &Cluster,
    program: &Program,
    folder: &Path,
    servers: &[Ports],
    more: &str,
) -> anyhow::Result<()> {
    cluster.execute(SCHEMA)?;
    for (number, Ports { admin, .. }) in servers.iter().enumerate() {
        // They are set up differently: nothing may depend on it.
        let limits = match number % 3 {
            0 => "",
            1 => "[server.limits]\nupload_workers = 2\n",
            _ => "[server.limits]\nmemory = \"1MiB\"\ndownload_workers = 2\n",
        };
        let name = format!("server-{number}.toml");
        let url = cluster.url();
        let text = format!(
            "[server]\nconsolidated = {url:?}\nproxies = [{BALANCER:?}]\n\
             admin = \"http://127.0.0.1:{admin}\"\n{limits}\n[retention]\ninterval = \"2s\"\n\
             {PUBLICATION}\n{more}"
        );
        std::fs::write(folder.join(&name), text)?;
    }
    program.done(&["deploy", "-c", "server-0.toml"])?;
    for (user, _) in USERS {
        program.add_user(&["user", "add", user, "-c", "server-0.toml"], user)?;
    }
    program.add_user(&["user", "add", PROVIDER, "-c", "server-0.toml"], PROVIDER)
}

/// Everybody who edits or syncs.
struct Players {
    devices: Vec<(JoinHandle<anyhow::Result<Device>>, JoinHandle<Ledger>)>,
    offices: Vec<JoinHandle<anyhow::Result<Ledger>>>,
}

impl Players {
    fn start(
        arguments: &Arguments,
        stage: &Arc<Stage>,
        program: &Program,
        keeper: &Keeper,
        roads: &[String],
        chance: &mut Chance,
    ) -> anyhow::Result<Players> {
        let mut devices = Vec::new();
        for number in 1..=arguments.devices {
            let road = &roads[number % roads.len()];
            let mut device = Device::new(stage, program, number, road, chance.fork())?;
            // The file grows for as long as somebody edits; after an hour it has some 40 MiB.
            let small = 96 + arguments.seconds / 20;
            if number == 1 && keeper.mount(device.folder(), small)? {
                stage.note("device-1 has a small disk");
                device.set_small_disk();
            }
            let (_, regions) = USERS[number % USERS.len()];
            let path = device.path.clone();
            let application = Application::new(stage, number as i64, path, regions, chance.fork());
            devices.push((
                std::thread::spawn({
                    let stage = stage.clone();
                    move || stage.unless_it_fails(device.run())
                }),
                std::thread::spawn(move || application.run()),
            ));
        }
        Ok(Players {
            devices,
            offices: Vec::new(),
        })
    }

    fn add_offices(&mut self, stage: &Arc<Stage>, url: &str, chance: &mut Chance) {
        for number in 0..OFFICES {
            let office = Office::new(stage, number, url.to_owned(), chance.fork());
            self.offices.push(std::thread::spawn({
                let stage = stage.clone();
                move || stage.unless_it_fails(office.run())
            }));
        }
    }
}

/// Lets everybody come to rest, and judges.
fn judge(stage: &Arc<Stage>, cluster: &Cluster, players: Players) -> anyhow::Result<CheckedCounts> {
    stage.runs.store(false, Ordering::SeqCst);
    let mut witnesses = Vec::new();
    for (device, application) in players.devices {
        witnesses.push(Witness {
            device: joined(device)??,
            ledger: joined(application)?,
        });
    }
    let mut offices = Vec::new();
    for office in players.offices {
        offices.push(joined(office)??);
    }
    rest(&mut witnesses)?;
    let mut judge = Judge {
        stage,
        centre: JudgedCentre::open(&cluster.url())?,
        checked: CheckedCounts::default(),
    };
    judge.judge_fates(&witnesses, &offices)?;
    judge.judge_messages(&witnesses)?;
    for witness in &witnesses {
        witness.device.discard_refused()?;
    }
    rest(&mut witnesses)?;
    judge.judge_rows(&witnesses)?;
    Ok(judge.checked)
}

/// Syncs everybody until nothing moves.
fn rest(witnesses: &mut [Witness]) -> anyhow::Result<()> {
    for _ in 0..ROUNDS {
        let mut moved = false;
        for witness in witnesses.iter_mut() {
            moved |= witness.device.sync_healed()?;
        }
        if !moved {
            return Ok(());
        }
    }
    Err(anyhow!(
        "after {ROUNDS} rounds of syncs there is still something that moves"
    ))
}

fn joined<T>(thread: JoinHandle<T>) -> anyhow::Result<T> {
    thread
        .join()
        .map_err(|_| anyhow!("a part of the rig panicked"))
}

fn find_panics(stage: &Stage, name: &str) -> anyhow::Result<()> {
    let log = std::fs::read_to_string(stage.path(name))?;
    for line in log.lines().filter(|line| line.contains("panicked")) {
        stage.finding(format!("{name}: {line}"));
    }
    Ok(())
}

fn print(report: &RigReport, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        println!("{}", serde_json::to_string_pretty(report)?);
        return Ok(());
    }
    println!(
        "seed {}: broken for {} s, {} s in all",
        report.seed, report.broken_seconds, report.seconds
    );
    for (title, counts) in [("faults", &report.faults), ("syncs", &report.syncs)] {
        println!("\n{title}");
        for (what, count) in counts {
            println!("{count:>9}  {what}");
        }
    }
    println!("\nchecked");
    let checked = serde_json::to_value(&report.checked)?;
    for (what, count) in checked.as_object().into_iter().flatten() {
        println!("{:>9}  {}", count.to_string(), what.replace('_', " "));
    }
    println!("\n{} findings", report.findings);
    for finding in &report.first_findings {
        println!("  {finding}");
    }
    Ok(())
}
