//! The SQLite of 2016, as an old device brings it: a program of its own, because a program holds
//! one SQLite only.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Runs statements on a file; the rows, columns joined by `|`, or SQLite's message.
///
/// # Panics
/// The program cannot be built or run.
pub fn old_sqlite(file: &Path, statements: &str) -> Result<Vec<String>, String> {
    let mut child = Command::new(program())
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut input = child.stdin.take().expect("its input is piped");
    input
        .write_all(statements.as_bytes())
        .expect("it reads its input");
    drop(input);
    let output = child.wait_with_output().expect("the program ends");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout).lines().map(str::to_owned).collect()),
        false => Err(text(&output.stderr)),
    }
}

/// The program, built when it is asked for first.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| workspace.join("target"), PathBuf::from)
            .join("old-sqlite");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built = Command::new(cargo)
            .args(["build", "--locked", "--quiet", "--manifest-path"])
            .arg(workspace.join("old-sqlite/Cargo.toml"))
            .arg("--target-dir")
            .arg(&target)
            .status()
            .expect("cargo runs");
        assert!(built.success(), "the old SQLite cannot be built");
        target.join("debug/tidewater-old-sqlite")
    })
}
