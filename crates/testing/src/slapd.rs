//! An LDAP directory of a test's own: OpenLDAP's slapd.

#![allow(
    clippy::disallowed_methods,
    reason = "waits for a real process, which knows no other clock"
)]

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::claim_port;

/// How long it may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where distributions put schemas and modules.
const SCHEMAS: [&str; 2] = ["/etc/ldap/schema", "/etc/openldap/schema"];
const MODULES: [&str; 3] = ["/usr/lib/ldap", "/usr/lib64/openldap", "/usr/lib/openldap"];

/// The name of the entry that may read and write everything, and its password.
pub const ROOT: (&str, &str) = ("cn=root,dc=example", "the root's password");

/// A certificate of a directory and its key: PEM files.
#[derive(Debug)]
pub struct DirectoryTls<'a> {
    /// The certificate, which is its own authority.
    pub certificate: &'a Path,
    /// Its key.
    pub key: &'a Path,
}

/// A running directory; it ends when this is dropped.
#[derive(Debug)]
pub struct Slapd {
    process: Option<Child>,
    ports: [u16; 2],
    folder: tempfile::TempDir,
    has_tls: bool,
}

impl Slapd {
    /// Starts one on free ports, with the entries of an LDIF text below `dc=example`. Whoever is
    /// bound may read its own entry, [`ROOT`] everything, nobody else anything.
    ///
    /// # Errors
    /// There is no `slapd`, it takes the entries not, or it does not start.
    pub fn start(entries: &str, tls: Option<&DirectoryTls<'_>>) -> Result<Slapd> {
        let folder = tempfile::tempdir()?;
        let place = folder.path();
        fs::create_dir(place.join("data"))?;
        fs::write(place.join("slapd.conf"), configuration(place, tls)?)?;
        fs::write(place.join("entries.ldif"), entries)?;
        let added = Command::new(program("slapadd"))
            .arg("-f")
            .arg(place.join("slapd.conf"))
            .arg("-l")
            .arg(place.join("entries.ldif"))
            .output()
            .context("slapadd cannot be started: install slapd (Debian: slapd)")?;
        let said = String::from_utf8_lossy(&added.stderr);
        ensure!(added.status.success(), "slapadd: {said}");
        let mut slapd = Slapd {
            process: None,
            ports: [claim_port()?, claim_port()?],
            folder,
            has_tls: tls.is_some(),
        };
        slapd.restart()?;
        Ok(slapd)
    }

    /// Starts it again.
    ///
    /// # Errors
    /// It does not start.
    pub fn restart(&mut self) -> Result<()> {
        self.stop();
        let process = spawn(self.folder.path(), self.ports, self.has_tls)?;
        let is_there = is_there(self.process.insert(process), self.ports[0])?;
        ensure!(is_there, "slapd does not start");
        Ok(())
    }

    /// Ends it.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Where it is, unencrypted at first.
    pub fn url(&self) -> String {
        format!("ldap://127.0.0.1:{}", self.ports[0])
    }

    /// Where it is, encrypted from the first byte.
    pub fn url_with_tls(&self) -> String {
        format!("ldaps://localhost:{}", self.ports[1])
    }
}

/// Waits until it listens; whether it does.
fn is_there(process: &mut Child, port: u16) -> Result<bool> {
    let end = Instant::now() + PATIENCE;
    loop {
        if process.try_wait()?.is_some() {
            return Ok(false);
        }
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return Ok(true);
        }
        ensure!(Instant::now() < end, "slapd does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Slapd {
    fn drop(&mut self) {
        self.stop();
    }
}

fn spawn(place: &Path, ports: [u16; 2], has_tls: bool) -> Result<Child> {
    let [plain, encrypted] = ports;
    let mut urls = format!("ldap://127.0.0.1:{plain}/");
    if has_tls {
        urls.push_str(&format!(" ldaps://127.0.0.1:{encrypted}/"));
    }
    Command::new(program("slapd"))
        // In the foreground.
        .args(["-d", "0", "-h", &urls, "-f"])
        .arg(place.join("slapd.conf"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("slapd cannot be started: install it (Debian: slapd)")
}

fn configuration(place: &Path, tls: Option<&DirectoryTls<'_>>) -> Result<String> {
    let schemas = existing(&SCHEMAS).context("slapd has no schemas")?;
    let schema = |name: &str| format!("include {}\n", schemas.join(name).display());
    let mut text: String = ["core.schema", "cosine.schema", "inetorgperson.schema"]
        .map(schema)
        .concat();
    // Elsewhere the database is built in.
    if let Some(modules) = existing(&MODULES) {
        text.push_str(&format!(
            "modulepath {}\nmoduleload back_mdb\n",
            modules.display()
        ));
    }
    if let Some(tls) = tls {
        text.push_str(&format!(
            "TLSCertificateFile {}\nTLSCertificateKeyFile {}\nTLSCACertificateFile {}\n",
            tls.certificate.display(),
            tls.key.display(),
            tls.certificate.display()
        ));
    }
    let (root, password) = ROOT;
    text.push_str(&format!(
        "database mdb\nsuffix \"dc=example\"\nrootdn \"{root}\"\nrootpw \"{password}\"\n\
         directory {}\nmaxsize 16777216\n\
         access to attrs=userPassword by anonymous auth by * none\n\
         access to * by self read by * none\n",
        place.join("data").display()
    ));
    Ok(text)
}

fn existing(folders: &[&str]) -> Option<PathBuf> {
    let mut folders = folders.iter().map(PathBuf::from);
    folders.find(|it| it.is_dir())
}

/// Where distributions put it, if it is not in the path.
fn program(name: &str) -> PathBuf {
    let known = Path::new("/usr/sbin").join(name);
    match known.exists() {
        true => known,
        false => name.into(),
    }
}
