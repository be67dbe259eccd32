//! The soak itself: a short run reports that every promise was kept, and how many events it checked.
//!
//! The test needs a separate process, so that cargo runs no other test at the same time: the soak starts eight processes, and checks
//! bounds in time.

use std::process::Command;

#[test]
fn a_short_soak_finds_no_violation() {
    // With this seed, the server is killed with and without its data, and contenders are killed, too.
    const FAULTS: [&str; 3] = [
        "RestartServer, data Kept",
        "RestartServer, data Lost",
        "KillContenders",
    ];
    let soak = Command::new(env!("CARGO_BIN_EXE_soak"))
        .args(["--topology", "one", "--seconds", "8", "--seed", "18"])
        // A short ttl, so that the run takes less than twenty seconds, with the wait at the end.
        .args(["--longest-ttl", "3000"])
        .output()
        .expect("it starts");
    let output = String::from_utf8(soak.stdout).expect("text");
    assert!(soak.status.success(), "{}\n{output}", soak.status);
    let number_after = |what: &str| {
        let line = output.lines().find_map(|line| line.strip_prefix(what));
        let first = line.and_then(|rest| rest.split_whitespace().next());
        first.and_then(|word| word.parse::<u64>().ok())
    };
    for (what, least) in [("acquisitions", 300), ("increments", 300), ("faults", 1)] {
        let found = number_after(what);
        assert!(found >= Some(least), "{what}: {found:?}\n{output}");
    }
    for fault in FAULTS {
        assert!(output.contains(fault), "{fault}\n{output}");
    }
    for invariant in ["I1", "I3", "I4", "I5", "I6", "I7"] {
        let found = number_after(&format!("  {invariant}"));
        assert_eq!(found, Some(0), "{invariant}\n{output}");
    }
}
