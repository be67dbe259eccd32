//! The example of accounts and refresh tokens, on PostgreSQL and Redis.

use lock_tests::{PostgresServer, Process, RedisServer};

/// The figures in a row of the table that the example prints: those before, and those with locks.
fn figures(row: &str) -> [Vec<i64>; 2] {
    let cells: Vec<_> = row.trim_matches(['|', ' ']).split(" | ").collect();
    let [_, before, after] = cells[..] else {
        panic!("{row}");
    };
    [before, after].map(|cell| {
        let numbers = cell.split(", ").map(str::parse);
        numbers.collect::<Result<_, _>>().expect(row)
    })
}

#[test]
fn locks_keep_every_cent_and_every_token_where_the_service_lost_some() {
    // Finds deadlocks sooner than after the default of one second, since there may be forty in a row.
    let postgres = PostgresServer::start(&["deadlock_timeout=100ms"]);
    let redis = RedisServer::start();
    let variables = [
        ("DATABASE_URL", &*postgres.url()),
        ("LOCK_URL", &redis.url()),
    ];
    let program = env!("CARGO_BIN_EXE_accounts");
    let printed = Process::spawn(program, &[], &variables).join();

    let rows: Vec<_> = printed.lines().skip(2).take(3).map(figures).collect();
    let [
        [moved_before, moved_after],
        [deadlocks_before, deadlocks_after],
        [used_twice_before, used_twice_after],
    ] = &rows[..]
    else {
        panic!("{printed}");
    };
    assert_eq!(*moved_after, [20, 20, 20], "{printed}");
    assert_eq!(*deadlocks_after, [0], "{printed}");
    assert_eq!(*used_twice_after, [0], "{printed}");
    // Without a loss, the locks would have had nothing to prevent.
    assert!(moved_before.iter().any(|cents| *cents < 20), "{printed}");
    assert!(deadlocks_before[0] > 0, "{printed}");
    assert!(used_twice_before[0] > 0, "{printed}");
    assert!(redis.keys("lock:*").is_empty());
}
