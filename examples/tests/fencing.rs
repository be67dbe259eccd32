//! The example of a store that refuses a holder after a pause.

use std::process::Command;

fn run(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_fencing"))
        .args(arguments)
        .output()
        .expect("the example starts");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_sleeper_is_refused_and_the_next_holders_change_stays() {
    let printed = run(&[]);
    let said = |what: &str| printed.find(what).expect(what);
    let in_order = [
        "sleeper: has read 0 cents, and now sleeps",
        "successor: has the lock",
        "successor: 25 cents added",
        "sleeper: wakes up",
        "sleeper: 100 cents refused",
    ];
    assert!(in_order.map(said).is_sorted(), "{printed}");
    assert!(printed.contains("balance: 25 cents"), "{printed}");
}

#[test]
fn without_fencing_the_next_holders_change_is_lost() {
    let printed = run(&["--unfenced"]);
    assert!(printed.contains("balance: 100 cents"), "{printed}");
}
