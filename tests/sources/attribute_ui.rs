//! Compiles every file under `ui/` and compares the compiler's diagnostics with those that the file expects.
//!
//! - `pass/`: no warning, under `deny(warnings, missing_docs)`, `forbid(unsafe_code)` and clippy's pedantic lints.
//! - `fail/`: exactly the errors of its comments. `// error:` is a part of the message, and `// at:` the text under the
//!   primary span. If it matters, `// note:` is a part of any label, note or help. The errors of a block of comments are in the
//!   lines down to the next block. So a file may be a table of cases, named by their functions.
//! - `same/`: the same diagnostics with the attribute and, under `cfg(plain)`, without it.
//!
//! `⏎` in a message is a line break. A file `name.stderr` beside a case has the whole text, for a few cases that show its form;
//! `BLESS=1` writes it.
//!
//! Directives anywhere in a file: `// edition: 2021`, `// flag: --cfg=name`, `// features: macros` for a `lock-core` with no
//! other feature, `// features: none` for one without any. Each file is compiled by one `rustc`, with the libraries that cargo
//! has built for this test. `UI=part-of-a-path` runs the files that match.

use std::{
    collections::BTreeMap,
    env, fmt,
    fmt::Write as _,
    fs,
    ops::Range,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use serde_json::Value;

#[test]
fn what_must_compile_compiles_without_a_warning() {
    run_all("pass", 30, |case| {
        let found = case.compile(Tool::Clippy, &[])?;
        if found.is_empty() {
            Ok(())
        } else {
            Err(listed(&found))
        }
    });
}

#[test]
fn what_must_not_compile_is_refused_as_expected() {
    run_all("fail", 40, |case| {
        let expected = case.expected()?;
        let found = case.compile(Tool::Rustc, &["-Dwarnings", "-Adead_code"])?;
        compare(&expected, &found)?;
        case.compare_text(&found)
    });
}

#[test]
fn the_users_own_mistakes_look_as_without_the_attribute() {
    run_all("same", 5, |case| {
        let locked = case.compile(Tool::Rustc, &["--check-cfg=cfg(plain)"])?;
        let plain = case.compile(Tool::Rustc, &["--check-cfg=cfg(plain)", "--cfg=plain"])?;
        if plain.is_empty() {
            return Err("without the attribute there is nothing to compare".to_owned());
        }
        let summary = |found: &[Diagnostic]| {
            let mut lines: Vec<_> = found.iter().map(ToString::to_string).collect();
            lines.sort();
            lines.join("\n")
        };
        let (locked, plain) = (summary(&locked), summary(&plain));
        if locked == plain {
            Ok(())
        } else {
            Err(format!("with:\n{locked}\nwithout:\n{plain}"))
        }
    });
}

#[test]
#[ignore = "compiles all of it again: left to `tests/run --all`"]
fn what_must_compile_also_compiles_for_an_editor() {
    run_all("pass", 30, |case| {
        let found = case.compile(Tool::Editor, &["-Adead_code"])?;
        if found.is_empty() {
            Ok(())
        } else {
            Err(listed(&found))
        }
    });
}

/// A mistake in the runner itself must not pass for a success.
#[test]
fn a_wrong_expectation_is_noticed() {
    let source = "// error: no key\n// at: order\nfn main() {}\n";
    let case = Case {
        path: PathBuf::from("none.rs"),
        source: source.to_owned(),
    };
    let expected = case.expected().expect("two lines of expectation");
    let one = Diagnostic {
        level: "error".to_owned(),
        code: String::new(),
        message: "there is no key".to_owned(),
        at: "order".to_owned(),
        line: 3,
        rendered: String::new(),
        others: Vec::new(),
    };
    assert_eq!(compare(&expected, std::slice::from_ref(&one)), Ok(()));
    for (message, at) in [("there is a key", "order"), ("there is no key", "orders")] {
        let other = Diagnostic {
            message: message.to_owned(),
            at: at.to_owned(),
            ..one.clone()
        };
        assert!(compare(&expected, &[other]).is_err());
    }
    assert!(compare(&expected, &[]).is_err());
    assert!(compare(&expected, &[one.clone(), one]).is_err());
}

#[derive(Clone, Copy)]
enum Tool {
    Rustc,
    /// With the attribute as `rust-analyzer` expands it.
    Editor,
    Clippy,
}

struct Case {
    path: PathBuf,
    source: String,
}

#[derive(Clone, Debug)]
struct Diagnostic {
    level: String,
    code: String,
    message: String,
    /// The text under the primary span.
    at: String,
    /// Counted from zero.
    line: usize,
    /// The whole text, as the compiler shows it.
    rendered: String,
    /// Labels, notes and helps.
    others: Vec<String>,
}

#[derive(Debug)]
struct Expected {
    message: String,
    at: String,
    notes: Vec<String>,
    /// The line of the comment, and the line at which the next block of comments begins.
    lines: Range<usize>,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}[{}]: {} (line {}: `{}`)",
            self.level,
            self.code,
            self.message,
            self.line + 1,
            self.at
        )
    }
}

impl Case {
    fn directives<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.source.lines().filter_map(move |line| {
            line.strip_prefix("// ")?
                .strip_prefix(name)?
                .strip_prefix(": ")
        })
    }

    fn expected(&self) -> Result<Vec<Expected>, String> {
        let mut expected: Vec<Expected> = Vec::new();
        let mut is_within_a_block = false;
        for (number, line) in self.source.lines().enumerate() {
            if line.starts_with("// error: ") && !is_within_a_block {
                let open = expected.iter_mut();
                let open = open.filter(|expected| expected.lines.end == usize::MAX);
                open.for_each(|expected| expected.lines.end = number);
            }
            is_within_a_block = line.starts_with("// ");
            if let Some(message) = line.strip_prefix("// error: ") {
                expected.push(Expected {
                    message: message.replace("⏎", "\n"),
                    at: String::new(),
                    notes: Vec::new(),
                    lines: number..usize::MAX,
                });
            } else if let Some(at) = line.strip_prefix("// at: ") {
                at.clone_into(&mut expected.last_mut().ok_or("`at` before `error`")?.at);
            } else if let Some(note) = line.strip_prefix("// note: ") {
                expected
                    .last_mut()
                    .ok_or("`note` before `error`")?
                    .notes
                    .push(note.to_owned());
            }
        }
        match expected.iter().find(|expected| expected.at.is_empty()) {
            Some(expected) => Err(format!("no `at` for {expected:?}")),
            None if expected.is_empty() => Err("expects no error".to_owned()),
            None => Ok(expected),
        }
    }

    fn compare_text(&self, found: &[Diagnostic]) -> Result<(), String> {
        let path = self.path.with_extension("stderr");
        let Ok(expected) = fs::read_to_string(&path) else {
            return Ok(());
        };
        let folder = format!("{}/", self.path.parent().expect("a folder").display());
        let text: String = found
            .iter()
            .map(|one| one.rendered.replace(&folder, ""))
            .collect();
        if env::var_os("BLESS").is_some() {
            fs::write(&path, &text).map_err(|error| error.to_string())?;
        } else if text != expected {
            return Err(format!("not the text of {}:\n{text}", path.display()));
        }
        Ok(())
    }

    fn compile(&self, tool: Tool, flags: &[&str]) -> Result<Vec<Diagnostic>, String> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let built = match tool {
            Tool::Rustc | Tool::Clippy => match self.directives("features").next() {
                Some("macros") => built_with_macros_only(),
                Some("none") => built_without_features(),
                Some(other) => return Err(format!("no `lock-core` is built with {other}")),
                None => built(),
            },
            Tool::Editor => built_for_an_editor(),
        };
        let output = built.scratch.join(format!(
            "case{}.rmeta",
            COUNT.fetch_add(1, Ordering::Relaxed)
        ));
        let program = match tool {
            Tool::Rustc | Tool::Editor => "rustc",
            Tool::Clippy => "clippy-driver",
        };
        let edition = self.directives("edition").next().unwrap_or("2024");
        let mut command = Command::new(program);
        command.args([
            "--crate-type=lib",
            "--crate-name=case",
            "--emit=metadata",
            "--error-format=json",
        ]);
        command
            .arg(format!("--edition={edition}"))
            .arg("-o")
            .arg(&output)
            .arg(&self.path)
            .args(flags);
        command
            .arg("-L")
            .arg(format!("dependency={}", built.dependencies.display()));
        command.args(self.directives("flag"));
        for (name, library) in &built.libraries {
            command
                .arg("--extern")
                .arg(format!("{name}={}", library.display()));
        }
        if matches!(tool, Tool::Clippy) {
            command.args([
                "-Dwarnings",
                "-Dmissing_docs",
                "-Funsafe_code",
                "-Dclippy::all",
                "-Dclippy::pedantic",
                "-Adead_code",
            ]);
        }
        let result = command
            .output()
            .map_err(|error| format!("{program} did not start: {error}"))?;
        let text = String::from_utf8_lossy(&result.stderr);
        let found: Vec<Diagnostic> = text.lines().filter_map(diagnostic).collect();
        let errors = found.iter().any(|diagnostic| diagnostic.level == "error");
        if result.status.success() == errors || (result.status.success() && !output.exists()) {
            return Err(format!(
                "{program} ended with {} and said:\n{text}",
                result.status
            ));
        }
        drop(fs::remove_file(output));
        Ok(found)
    }
}

/// The libraries that a case may use.
const USED: [&str; 10] = [
    "actix_web",
    "anyhow",
    "async_trait",
    "axum",
    "futures_util",
    "lock_core",
    "poem",
    "tokio",
    "tonic",
    "tracing",
];

/// The cargo command that built this test, so that its results exist already.
const THIS_TEST: [&str; 3] = ["build", "--package=lock-tests", "--test=sources"];

/// The libraries that cargo built for this test.
struct Built {
    libraries: BTreeMap<String, PathBuf>,
    dependencies: PathBuf,
    scratch: PathBuf,
}

fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| build("", &THIS_TEST, &USED))
}

/// `lock-core` with the attribute and nothing else, for messages about a feature that is off.
fn built_with_macros_only() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    let package = [
        "check",
        "--package=lock-core",
        "--no-default-features",
        "--features=macros",
    ];
    BUILT.get_or_init(|| build("", &package, &["lock_core"]))
}

/// `lock-core` without the attribute, for messages about that.
fn built_without_features() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    let package = ["check", "--package=lock-core", "--no-default-features"];
    BUILT.get_or_init(|| build("", &package, &["lock_core"]))
}

/// The same with `cfg(rust_analyzer)`. Only the workspace is built again: a wrapper of the compiler is no flag of its libraries.
fn built_for_an_editor() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    let wrapper = concat!(env!("CARGO_MANIFEST_DIR"), "/sources/rustc_of_an_editor");
    BUILT.get_or_init(|| build(wrapper, &THIS_TEST, &USED))
}

/// The folder from which this test was started.
fn target() -> PathBuf {
    let own = env::current_exe().expect("the path of this test");
    own.ancestors()
        .nth(3)
        .expect("target/debug/deps/test")
        .to_owned()
}

fn build(wrapper: &str, package: &[&str], used: &[&str]) -> Built {
    let target = target();
    let mut cargo = Command::new(env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    cargo
        .args(package)
        .args(["--message-format=json", "--target-dir"]);
    cargo.arg(&target).current_dir(env!("CARGO_MANIFEST_DIR"));
    if !wrapper.is_empty() {
        cargo.env("RUSTC_WORKSPACE_WRAPPER", wrapper);
    }
    let output = cargo.output().expect("cargo starts");
    assert!(
        output.status.success(),
        "cargo build: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut libraries = BTreeMap::<String, (usize, PathBuf)>::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let name = message["target"]["name"]
            .as_str()
            .unwrap_or_default()
            .replace('-', "_");
        let mut files = message["filenames"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        if let Some(file) = files.find(|file| {
            [".rlib", ".rmeta", ".so", ".dylib"]
                .iter()
                .any(|end| file.ends_with(end))
        }) && used.contains(&name.as_str())
        {
            // A library that a macro needs, too, is built twice, with fewer features for the macro.
            let features = message["features"].as_array().map_or(0, Vec::len);
            let found = libraries.entry(name).or_default();
            *found = (features, PathBuf::from(file)).max(std::mem::take(found));
        }
    }
    assert_eq!(
        libraries.len(),
        used.len(),
        "not all libraries of the cases were built: {libraries:?}"
    );
    let libraries = libraries
        .into_iter()
        .map(|(name, (_, file))| (name, file))
        .collect();
    let scratch = target.join("ui-cases");
    fs::create_dir_all(&scratch).expect("a folder for the output");
    Built {
        libraries,
        dependencies: target.join("debug/deps"),
        scratch,
    }
}

fn run_all(folder: &str, least: usize, check: impl Fn(&Case) -> Result<(), String> + Sync) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("ui")
        .join(folder);
    let mut paths: Vec<PathBuf> = fs::read_dir(&root)
        .unwrap_or_else(|error| panic!("{}: {error}", root.display()))
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect();
    paths.sort();
    assert!(
        paths.len() >= least,
        "{} cases in {}, not {least}: did some get lost?",
        paths.len(),
        root.display()
    );
    let only = env::var("UI").unwrap_or_default();
    paths.retain(|path| path.to_string_lossy().contains(&only));
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(BTreeMap::new());
    let done = AtomicUsize::new(0);
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let source = fs::read_to_string(path).expect("a readable case");
                    let case = Case {
                        path: path.clone(),
                        source,
                    };
                    if let Err(reason) = check(&case) {
                        failures
                            .lock()
                            .expect("no check panics")
                            .insert(path.clone(), reason);
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(
        done.load(Ordering::Relaxed),
        paths.len(),
        "not every case ran"
    );
    let failures = failures.into_inner().expect("no check panics");
    let mut report = String::new();
    for (path, reason) in &failures {
        write!(report, "\n--- {}\n{reason}\n", path.display()).expect("memory");
    }
    assert!(
        failures.is_empty(),
        "{} of {} cases in {folder}/:{report}",
        failures.len(),
        paths.len()
    );
}

fn compare(expected: &[Expected], found: &[Diagnostic]) -> Result<(), String> {
    let mut left: Vec<&Diagnostic> = found.iter().collect();
    let mut missing = String::new();
    for expected in expected {
        let fits = |found: &&Diagnostic| {
            found.level == "error"
                && found.message.contains(&expected.message)
                && found.at == expected.at
                && expected.lines.contains(&found.line)
                && expected
                    .notes
                    .iter()
                    .all(|note| found.others.iter().any(|other| other.contains(note)))
        };
        match left.iter().position(fits) {
            Some(position) => drop(left.remove(position)),
            None => writeln!(missing, "missing: {expected:?}").expect("memory"),
        }
    }
    if missing.is_empty() && left.is_empty() {
        Ok(())
    } else {
        Err(format!("{missing}found:\n{}", listed(found)))
    }
}

fn listed(found: &[Diagnostic]) -> String {
    found
        .iter()
        .map(|one| format!("{one}\n    {}", one.others.join("\n    ")))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Reads one line of the compiler's output; `None` if it is only about the number of errors.
fn diagnostic(line: &str) -> Option<Diagnostic> {
    let message: Value = serde_json::from_str(line).ok()?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let level = text(&message["level"]);
    if !matches!(level.as_str(), "error" | "warning") {
        return None;
    }
    let spans = message["spans"].as_array().map_or(&[][..], Vec::as_slice);
    let mut primary = spans.iter().find(|span| span["is_primary"] == true)?;
    // The text of a macro in another crate is not shown, but the user's call of the macro.
    while primary["text"].as_array().is_none_or(Vec::is_empty) && primary["expansion"].is_object() {
        primary = &primary["expansion"]["span"];
    }
    let labels = spans.iter().map(|span| text(&span["label"]));
    let children = message["children"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|child| text(&child["message"]));
    Some(Diagnostic {
        level,
        code: text(&message["code"]["code"]),
        message: text(&message["message"]),
        at: covered(primary),
        line: usize::try_from(primary["line_start"].as_u64().unwrap_or_default())
            .unwrap_or(0)
            .saturating_sub(1),
        rendered: text(&message["rendered"]),
        others: labels
            .chain(children)
            .filter(|other| !other.is_empty())
            .collect(),
    })
}

/// The source text of a span.
fn covered(span: &Value) -> String {
    let lines = span["text"].as_array().into_iter().flatten();
    let covered = lines.map(|line| {
        let text: Vec<char> = line["text"].as_str().unwrap_or_default().chars().collect();
        let column =
            |name: &str| usize::try_from(line[name].as_u64().unwrap_or(1)).unwrap_or(1) - 1;
        text[column("highlight_start")..column("highlight_end")]
            .iter()
            .collect::<String>()
    });
    covered.collect::<Vec<_>>().join("\n")
}
