//! The soak itself: a short one says that everything was kept, and counts what it says that of.
//!
//! A process of its own, so that cargo runs no other test beside it: it starts eight processes, and promises bounds in time.

use std::process::Command;

#[test]
fn a_short_soak_keeps_all_promises() {
    // By this seed the server is killed with its data and without, and contenders with it.
    let soak = Command::new(env!("CARGO_BIN_EXE_soak"))
        .args(["--topology", "one", "--seconds", "6", "--seed", "18"])
        // So that all of it, the wait at the end included, takes less than twenty seconds.
        .args(["--longest-ttl", "3000"])
        .output()
        .expect("it starts");
    let said = String::from_utf8(soak.stdout).expect("text");
    assert!(soak.status.success(), "{}\n{said}", soak.status);
    let number_after = |what: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(what));
        let first = line.and_then(|rest| rest.split_whitespace().next());
        first.and_then(|word| word.parse::<u64>().ok())
    };
    for (what, least) in [("acquisitions", 300), ("increments", 300), ("faults", 1)] {
        let found = number_after(what);
        assert!(found >= Some(least), "{what}: {found:?}\n{said}");
    }
    for invariant in ["I1", "I3", "I4", "I5", "I6", "I7"] {
        let found = number_after(&format!("  {invariant}"));
        assert_eq!(found, Some(0), "{invariant}\n{said}");
    }
}
