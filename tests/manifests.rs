//! What the crates say about themselves.

use std::{collections::HashMap, process::Command};

use serde_json::Value;

/// The packages of a build for this machine, all features on, and who depends on whom.
struct Metadata {
    packages: HashMap<String, Value>,
    nodes: HashMap<String, Value>,
}

impl Metadata {
    fn read() -> Self {
        // Without the filter, cargo would fetch what is only for other systems.
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

    /// Everything that a user of the package compiles with it.
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

/// Major, minor and patch; what is left out is zero, and so is a version that is not declared.
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
