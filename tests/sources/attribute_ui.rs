//! Compiles every file under `ui/` and compares the compiler's diagnostics with those that the file expects.
//!
//! - `pass/`: no warning, under `deny(warnings, missing_docs)`, `forbid(unsafe_code)` and clippy's pedantic lints.
//! - `fail/`: exactly the errors in its comments. `// error:` is a part of the message, and `// at:` the text under the primary span.
//!   Each `// note:` is a part of some label, note or help. A block of such comments is about the lines down to the next block, so a
//!   file may be a table of cases.
//! - `same/`: the same diagnostics with the attribute and, under `cfg(plain)`, without it.
//!
//! `⏎` in a message is a line break. If there is a file `name.stderr` beside a case, the whole text is compared with it. A few cases
//! have one, to show the form of the messages; `BLESS=1` writes it.
//!
//! Directives anywhere in a file: `// edition: 2021`, `// flag: --cfg=name`, `// features: macros` for a `lock-core` with no
//! other feature, `// features: none` for one without any. Each file is compiled by one `rustc`, with the libraries that cargo
//! built for this test. `UI=part-of-a-path` selects files.

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

use crate::files::{below, read_at, root};

#[test]
fn supported_forms_compile_without_a_warning() {
    run_all("pass", 25, |case| {
        expect_none(&case.compile(Tool::Clippy, &[])?)
    });
}

#[test]
fn mistakes_are_refused_with_the_expected_errors() {
    run_all("fail", 30, |case| {
        let expected = case.expected()?;
        let found = case.compile(Tool::Rustc, &["-Dwarnings", "-Adead_code"])?;
        compare(&expected, &found)?;
        case.compare_text(&found)
    });
}

#[test]
fn mistakes_in_the_body_are_reported_as_without_the_attribute() {
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
fn supported_forms_also_compile_for_an_editor() {
    run_all("pass", 25, |case| {
        expect_none(&case.compile(Tool::Editor, &["-Adead_code"])?)
    });
}

/// Guards against a comparison that accepts everything.
#[test]
fn a_wrong_expectation_is_noticed() {
    const SOURCE: &str = "\
// error: no key
// at: order
// note: add one
fn first() {}

// error: no key
// at: order
fn second() {}
";
    let case = Case {
        path: PathBuf::from("none.rs"),
        source: SOURCE.to_owned(),
    };
    let expected = case.expected().expect("two blocks of expectations");
    let right = |line, notes: &[&str]| Diagnostic {
        level: "error".to_owned(),
        message: "there is no key".to_owned(),
        at: "order".to_owned(),
        line,
        others: notes.iter().map(|&note| note.to_owned()).collect(),
        ..Diagnostic::default()
    };
    let (first, second) = (right(3, &["help: add one"]), right(7, &[]));
    let both = [second.clone(), first.clone()];
    assert_eq!(compare(&expected, &both), Ok(()));
    for wrong in [
        vec![],
        vec![first.clone()],
        vec![first.clone(), second.clone(), second.clone()],
        vec![right(3, &["help: remove one"]), second.clone()],
        vec![right(7, &["help: add one"]), second.clone()],
    ] {
        compare(&expected, &wrong).expect_err("other errors");
    }
    let changes: [fn(&mut Diagnostic); 3] = [
        |one| "there is a key".clone_into(&mut one.message),
        |one| "orders".clone_into(&mut one.at),
        |one| "warning".clone_into(&mut one.level),
    ];
    for change in changes {
        let mut wrong = first.clone();
        change(&mut wrong);
        compare(&expected, &[wrong, second.clone()]).expect_err("other errors");
    }
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

#[derive(Clone, Debug, Default)]
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
    /// From the line of the comment to the line at which the next block of comments begins.
    lines: Range<usize>,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            level,
            code,
            message,
            at,
            line,
            ..
        } = self;
        write!(f, "{level}[{code}]: {message} (line {}: `{at}`)", line + 1)
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
                let last = expected.last_mut().ok_or("`note` before `error`")?;
                last.notes.push(note.to_owned());
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
        let built = match (tool, self.directives("features").next()) {
            (Tool::Editor, _) => Built::for_an_editor(),
            (_, None) => Built::with_all_features(),
            (_, Some("macros")) => Built::with_macros_only(),
            (_, Some("none")) => Built::without_features(),
            (_, Some(other)) => return Err(format!("no `lock-core` is built with {other}")),
        };
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let output = built.scratch.join(format!("case{number}.rmeta"));
        let program = match tool {
            Tool::Rustc | Tool::Editor => "rustc",
            Tool::Clippy => "clippy-driver",
        };
        let edition = self.directives("edition").next().unwrap_or("2024");
        let mut command = Command::new(program);
        command
            .args(["--crate-type=lib", "--crate-name=case", "--emit=metadata"])
            .arg("--error-format=json")
            .arg(format!("--edition={edition}"))
            .arg(format!("-Ldependency={}", built.dependencies.display()))
            .arg("-o")
            .arg(&output)
            .arg(&self.path)
            .args(flags)
            .args(self.directives("flag"));
        for (name, library) in &built.libraries {
            command.arg(format!("--extern={name}={}", library.display()));
        }
        if matches!(tool, Tool::Clippy) {
            command.args(["-Dwarnings", "-Dmissing_docs", "-Funsafe_code"]);
            command.args(["-Dclippy::all", "-Dclippy::pedantic", "-Adead_code"]);
        }
        let result = command
            .output()
            .map_err(|error| format!("{program} did not start: {error}"))?;
        let text = String::from_utf8_lossy(&result.stderr);
        let found: Vec<Diagnostic> = text.lines().filter_map(Diagnostic::read).collect();
        let has_errors = found.iter().any(|diagnostic| diagnostic.level == "error");
        let has_succeeded = result.status.success() && output.exists();
        if has_succeeded == has_errors {
            let status = result.status;
            return Err(format!("{program} ended with {status} and said:\n{text}"));
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

/// The libraries that cargo built for the cases.
struct Built {
    libraries: BTreeMap<String, PathBuf>,
    dependencies: PathBuf,
    scratch: PathBuf,
}

impl Built {
    fn with_all_features() -> &'static Self {
        static BUILT: OnceLock<Built> = OnceLock::new();
        BUILT.get_or_init(|| Self::by("", &THIS_TEST, &USED))
    }

    /// A `lock-core` with the attribute and nothing else, for messages about a feature that is off.
    fn with_macros_only() -> &'static Self {
        static BUILT: OnceLock<Built> = OnceLock::new();
        let package = ["check", "--package=lock-core", "--no-default-features"];
        let package = [&package[..], &["--features=macros"]].concat();
        BUILT.get_or_init(|| Self::by("", &package, &["lock_core"]))
    }

    /// A `lock-core` without the attribute, for messages about that.
    fn without_features() -> &'static Self {
        static BUILT: OnceLock<Built> = OnceLock::new();
        let package = ["check", "--package=lock-core", "--no-default-features"];
        BUILT.get_or_init(|| Self::by("", &package, &["lock_core"]))
    }

    /// All features, with `cfg(rust_analyzer)`. Since a wrapper of the compiler sets it, only the workspace is built again.
    fn for_an_editor() -> &'static Self {
        static BUILT: OnceLock<Built> = OnceLock::new();
        let wrapper = concat!(env!("CARGO_MANIFEST_DIR"), "/sources/rustc_of_an_editor");
        BUILT.get_or_init(|| Self::by(wrapper, &THIS_TEST, &USED))
    }

    fn by(wrapper: &str, package: &[&str], used: &[&str]) -> Self {
        let own = env::current_exe().expect("the path of this test");
        let mut folders = own.ancestors();
        let target = folders.nth(3).expect("target/debug/deps/test");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(package).arg("--message-format=json");
        cargo.arg("--target-dir").arg(target).current_dir(root());
        if !wrapper.is_empty() {
            cargo.env("RUSTC_WORKSPACE_WRAPPER", wrapper);
        }
        let output = cargo.output().expect("cargo starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cargo: {said}");
        let mut libraries = BTreeMap::<String, (usize, PathBuf)>::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let message: Value = serde_json::from_str(line).unwrap_or_default();
            let name = message["target"]["name"].as_str().unwrap_or_default();
            let name = name.replace('-', "_");
            let files = list(&message["filenames"]).iter().filter_map(Value::as_str);
            let is_library = |file: &&str| {
                let mut ends = [".rlib", ".rmeta", ".so", ".dylib"].iter();
                ends.any(|end| file.ends_with(end))
            };
            // A file outside of `deps` has no hash in its name, and any other build replaces it.
            let file = files
                .filter(is_library)
                .max_by_key(|file| file.contains("/deps/"));
            if let Some(file) = file
                && used.contains(&name.as_str())
            {
                // A library that a macro also needs is built twice, with fewer features for the macro.
                let features = list(&message["features"]).len();
                let found = libraries.entry(name).or_default();
                *found = (features, PathBuf::from(file)).max(std::mem::take(found));
            }
        }
        assert_eq!(
            libraries.len(),
            used.len(),
            "some are missing: {libraries:?}"
        );
        let libraries = libraries.into_iter();
        let scratch = target.join("ui-cases");
        fs::create_dir_all(&scratch).expect("a folder for the output");
        Self {
            libraries: libraries.map(|(name, (_, file))| (name, file)).collect(),
            dependencies: target.join("debug/deps"),
            scratch,
        }
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Runs a check on all cases in a folder of `ui/`, of which there are at least this many.
fn run_all(folder: &str, least: usize, check: impl Fn(&Case) -> Result<(), String> + Sync) {
    let ui = Path::new(env!("CARGO_MANIFEST_DIR")).join("ui");
    let mut paths = below(&ui.join(folder), "rs");
    let count = paths.len();
    assert!(
        count >= least,
        "{count} cases in {folder}/: did some get lost?"
    );
    let only = env::var("UI").unwrap_or_default();
    let is_selected = |path: &PathBuf| path.to_string_lossy().contains(&only);
    assert!(
        below(&ui, "rs").iter().any(is_selected),
        "no file below ui/ has `{only}` in its path"
    );
    paths.retain(is_selected);
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(BTreeMap::new());
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let case = Case {
                        path: path.clone(),
                        source: read_at(path),
                    };
                    if let Err(reason) = check(&case) {
                        let mut failures = failures.lock().expect("no check panics");
                        failures.insert(path.clone(), reason);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no check panics");
    let mut report = String::new();
    for (path, reason) in &failures {
        write!(report, "\n--- {}\n{reason}\n", path.display()).expect("memory");
    }
    let failed = failures.len();
    assert_eq!(failed, 0, "of {} cases in {folder}/:{report}", paths.len());
}

fn expect_none(found: &[Diagnostic]) -> Result<(), String> {
    if found.is_empty() {
        Ok(())
    } else {
        Err(listed(found))
    }
}

fn compare(expected: &[Expected], found: &[Diagnostic]) -> Result<(), String> {
    let mut left: Vec<&Diagnostic> = found.iter().collect();
    let mut missing = String::new();
    for expected in expected {
        let fits = |found: &&Diagnostic| {
            let has_note = |note: &String| found.others.iter().any(|other| other.contains(note));
            found.level == "error"
                && found.message.contains(&expected.message)
                && found.at == expected.at
                && expected.lines.contains(&found.line)
                && expected.notes.iter().all(has_note)
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

impl Diagnostic {
    /// Reads one line of the compiler's output; `None` if it is only about the number of errors.
    fn read(line: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(line).ok()?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let level = text(&message["level"]);
        if !matches!(level.as_str(), "error" | "warning") {
            return None;
        }
        let spans = list(&message["spans"]);
        let mut primary = spans.iter().find(|span| span["is_primary"] == true)?;
        // For the text of a macro in another crate, the compiler shows the user's call of the macro.
        while list(&primary["text"]).is_empty() && primary["expansion"].is_object() {
            primary = &primary["expansion"]["span"];
        }
        let labels = spans.iter().map(|span| text(&span["label"]));
        let children = list(&message["children"]).iter();
        let others = labels.chain(children.map(|child| text(&child["message"])));
        Some(Self {
            level,
            code: text(&message["code"]["code"]),
            message: text(&message["message"]),
            at: covered(primary),
            line: number(&primary["line_start"]).saturating_sub(1),
            rendered: text(&message["rendered"]),
            others: others.filter(|other| !other.is_empty()).collect(),
        })
    }
}

/// Returns the source text of a span.
fn covered(span: &Value) -> String {
    let lines = list(&span["text"]).iter().map(|line| {
        let text = line["text"].as_str().unwrap_or_default().chars();
        let (start, end) = (
            number(&line["highlight_start"]),
            number(&line["highlight_end"]),
        );
        text.skip(start - 1).take(end - start).collect::<String>()
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn number(value: &Value) -> usize {
    value
        .as_u64()
        .map_or(1, |number| usize::try_from(number).expect("small"))
}
