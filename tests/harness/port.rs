//! Free ports for servers and proxies.

use std::{
    io::ErrorKind,
    net::TcpListener,
    ops::Range,
    sync::atomic::{AtomicU16, Ordering},
};

/// Below the ports that Linux gives to outgoing connections. A port within that range would sooner or
/// later be given to a client that keeps connecting to a killed server on the same port. The client
/// would connect to itself, and the server could not come back.
const RANGE: Range<u16> = 16_000..32_000;

/// A port of 127.0.0.1 that had no listener a moment ago. Another process may take it first:
/// if the bind fails, the caller has to try again with the next port.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let size = RANGE.end - RANGE.start;
    // Each test process starts at another port: otherwise all of them would race for the same few.
    let start = std::process::id().wrapping_mul(7_919);
    for _ in 0..size {
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let offset = start.wrapping_add(step) % u32::from(size);
        let port = RANGE.start + u16::try_from(offset).expect("less than the size of the range");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port between {} and {}", RANGE.start, RANGE.end);
}

/// The node of a cluster also listens this far above its port. Newer servers can be told another port, Redis 6.2 cannot.
const BUS: u16 = 10_000;

/// A free port for the node of a cluster, with the port of its bus free and in the same range.
pub(crate) fn free_port_and_bus() -> u16 {
    for _ in RANGE {
        let port = free_port();
        if bus_of(port).is_some_and(|bus| TcpListener::bind(("127.0.0.1", bus)).is_ok()) {
            return port;
        }
    }
    panic!(
        "no two free ports between {} and {}",
        RANGE.start, RANGE.end
    );
}

/// The port of the bus, if it is in the range, so that no outgoing connection gets it.
fn bus_of(port: u16) -> Option<u16> {
    port.checked_add(BUS).filter(|bus| RANGE.contains(bus))
}

/// A listener on a free port, for a task that serves it later: a client can connect at once.
pub(crate) fn listen() -> (TcpListener, u16) {
    for _ in 0..20 {
        let port = free_port();
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(listener) => {
                listener.set_nonblocking(true).expect("a fresh socket");
                return (listener, port);
            }
            // Another process took the port since.
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => panic!("port {port}: {error}"),
        }
    }
    panic!("no free port in twenty attempts");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_a_cluster_has_both_ports_in_the_range() {
        assert_eq!(bus_of(RANGE.start), Some(RANGE.start + BUS));
        assert_eq!(bus_of(RANGE.end - 1 - BUS), Some(RANGE.end - 1));
        assert_eq!(bus_of(RANGE.end - BUS), None);
        assert_eq!(bus_of(u16::MAX), None);
        let port = free_port_and_bus();
        assert!(RANGE.contains(&port) && bus_of(port).is_some(), "{port}");
    }
}
