//! Checks the manifests of the crates.

use std::{collections::HashMap, ffi::OsStr, path::Path, process::Command};

use serde_json::Value;
use spdx::{Expression, ParseMode};

/// Licences that require only attribution.
const LICENCES: [&str; 7] = [
    "Apache-2.0",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// The packages of a build for this machine, with all features on, and their dependencies.
struct Metadata {
    packages: HashMap<String, Value>,
    nodes: HashMap<String, Value>,
}

impl Metadata {
    fn read() -> Self {
        // Without the filter, cargo would fetch packages that only other systems need.
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--all-features"])
            .args(["--filter-platform", &host()])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("cargo");
        assert!(output.status.success(), "{output:?}");
        let metadata: Value = serde_json::from_slice(&output.stdout).expect("json");
        Self {
            packages: by_id(&metadata["packages"]),
            nodes: by_id(&metadata["resolve"]["nodes"]),
        }
    }

    fn find(&self, name: &str) -> &Value {
        let mut packages = self.packages.values();
        packages
            .find(|package| package["name"] == name && package["source"].is_null())
            .unwrap_or_else(|| panic!("no package {name}"))
    }

    /// Returns the packages that a user of a package compiles with it.
    fn normal_dependencies(&self, id: &str) -> Vec<&Value> {
        let mut found: Vec<&str> = vec![id];
        let mut next = 0;
        while let Some(&id) = found.get(next) {
            next += 1;
            for dependency in list(&self.nodes[id]["deps"]) {
                let kinds = list(&dependency["dep_kinds"]);
                let id = text(&dependency["pkg"]);
                if kinds.iter().any(|kind| kind["kind"].is_null()) && !found.contains(&id) {
                    found.push(id);
                }
            }
        }
        found.iter().map(|&id| &self.packages[id]).collect()
    }
}

fn host() -> String {
    let output = Command::new("rustc").arg("-vV").output().expect("rustc");
    let version = String::from_utf8(output.stdout).expect("text");
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.expect("rustc names its host").to_owned()
}

fn by_id(packages: &Value) -> HashMap<String, Value> {
    let packages = list(packages).iter();
    packages
        .map(|package| (text(&package["id"]).to_owned(), package.clone()))
        .collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("text")
}

/// Returns major, minor and patch. A missing part is zero, as is a version that is not declared.
fn rust_version(package: &Value) -> [u32; 3] {
    let declared = package["rust_version"].as_str().unwrap_or("0");
    let mut numbers = declared
        .split('.')
        .map(|number| number.parse().expect("a number"));
    std::array::from_fn(|_| numbers.next().unwrap_or(0))
}

#[test]
fn no_dependency_needs_a_newer_rust_than_its_crate_declares() {
    let metadata = Metadata::read();
    for name in ["lock-core", "lock-macros"] {
        let package = metadata.find(name);
        let declared = rust_version(package);
        assert_ne!(declared, [0; 3], "{name} declares no rust-version");
        let dependencies = metadata.normal_dependencies(text(&package["id"]));
        assert!(dependencies.len() > 3, "{name} has dependencies");
        for dependency in dependencies {
            let needed = rust_version(dependency);
            assert!(
                needed <= declared,
                "{name} declares rust {declared:?}, but {} {} needs {needed:?}",
                dependency["name"],
                dependency["version"]
            );
        }
    }
}

#[test]
fn each_licence_of_a_dependency_requires_only_attribution() {
    let metadata = Metadata::read();
    let id = text(&metadata.find("lock-core")["id"]);
    let dependencies = metadata.normal_dependencies(id);
    assert!(dependencies.len() > 50, "with all features");
    for dependency in dependencies {
        let licence = text(&dependency["license"]);
        // Some write `MIT/Apache-2.0` for "or".
        let expression = Expression::parse_mode(licence, ParseMode::LAX).expect("SPDX");
        let is_accepted = expression.evaluate(|wanted| {
            let id = wanted.license.id();
            id.is_some_and(|id| LICENCES.contains(&id.name))
        });
        let name = &dependency["name"];
        assert!(is_accepted, "{name} has the licence {licence}");
    }
}

/// Returns the files that `cargo package` puts into a package, as paths in it.
pub(crate) fn packaged(name: &str) -> Vec<String> {
    let output = Command::new(env!("CARGO"))
        .args(["package", "--package", name, "--list", "--allow-dirty"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo");
    assert!(output.status.success(), "{output:?}");
    let list = String::from_utf8(output.stdout).expect("text");
    list.lines().map(str::to_owned).collect()
}

#[test]
fn a_package_holds_what_its_users_need_and_nothing_else() {
    for name in ["lock-core", "lock-macros"] {
        let files = packaged(name);
        for needed in [
            "Cargo.toml",
            "README.md",
            "LICENSE-APACHE",
            "LICENSE-MIT",
            "src/lib.rs",
        ] {
            assert!(
                files.iter().any(|file| file == needed),
                "{name} lacks {needed}"
            );
        }
        for file in &files {
            let at_the_top = !file.contains('/');
            let made_by_cargo = matches!(
                &**file,
                ".cargo_vcs_info.json" | "Cargo.lock" | "Cargo.toml.orig"
            );
            let expected = match Path::new(file).extension().and_then(OsStr::to_str) {
                Some("rs" | "lua") => file.starts_with("src/"),
                Some("md") => at_the_top || file.starts_with("docs/"),
                // Part of a page of the documentation.
                Some("svg") => file.starts_with("docs/"),
                // For operators: a page of the documentation leads to them.
                Some("json" | "yml") => file.starts_with("docs/dashboards/"),
                Some("toml") => at_the_top,
                None => file.starts_with("LICENSE-"),
                Some(_) => false,
            };
            assert!(made_by_cargo || expected, "{name} has a stray file: {file}");
        }
    }
}

#[test]
fn docs_rs_shows_every_feature_that_is_public() {
    let metadata = Metadata::read();
    let package = metadata.find("lock-core");
    let shown = list(&package["metadata"]["docs"]["rs"]["features"]);
    let mut shown: Vec<&str> = shown.iter().map(text).collect();
    let features = package["features"].as_object().expect("features");
    let is_public = |name: &&str| !matches!(*name, "cli" | "default" | "simulation");
    let mut public: Vec<&str> = features
        .keys()
        .map(|name| &**name)
        .filter(is_public)
        .collect();
    shown.sort_unstable();
    public.sort_unstable();
    assert_eq!(shown, public);
}

#[test]
fn both_crates_have_one_version_and_ask_for_each_other_by_it() {
    let metadata = Metadata::read();
    let (core, macros) = (metadata.find("lock-core"), metadata.find("lock-macros"));
    assert_eq!(core["version"], macros["version"]);
    let mut dependencies = list(&core["dependencies"]).iter();
    let macros_of_core = dependencies.find(|dependency| dependency["name"] == "lock-macros");
    let asked = macros_of_core.expect("a dependency on the macros")["req"].clone();
    assert_eq!(text(&asked), format!("={}", text(&macros["version"])));
}
