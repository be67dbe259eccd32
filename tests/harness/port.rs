//! Free ports for servers and proxies.
//!
//! Ports are claimed in blocks, which no other test process uses while this one runs. So the port of a killed server stays without
//! a listener until the server is started again. No client of its test reaches a server of another test.

use std::{
    io::ErrorKind,
    net::{TcpListener, UdpSocket},
    ops::Range,
    sync::{Mutex, PoisonError},
};

/// The ports for cluster nodes. All of them are below those that Linux gives to outgoing connections: otherwise a
/// client that keeps connecting to a killed server would sooner or later get the server's port for itself, connect to
/// itself, and keep the server from coming back.
static NODES: Mutex<Ports> = Mutex::new(Ports::of(16_000..22_000));

/// The ports for everything else.
static OTHERS: Mutex<Ports> = Mutex::new(Ports::of(22_000..26_000));

/// The node of a cluster also listens on its port plus this number. Only servers newer than Redis 6.2 have a setting for that.
const BUS: u16 = 10_000;

/// How many ports are claimed at a time.
const BLOCK: u16 = 100;

/// After this many blocks, a process starts again with its first one, and leaves the others to other processes.
const MOST_BLOCKS: usize = 8;

#[derive(Debug)]
struct Ports {
    range: Range<u16>,
    /// The first ports of the blocks, in the order of their claims, each with its claim.
    blocks: Vec<(u16, UdpSocket)>,
    /// The number of ports of the blocks that were given away.
    given: usize,
}

impl Ports {
    const fn of(range: Range<u16>) -> Self {
        Self {
            range,
            blocks: Vec::new(),
            given: 0,
        }
    }

    /// Returns the next port without a listener.
    fn next_free(&mut self) -> u16 {
        for _ in 0..=MOST_BLOCKS * usize::from(BLOCK) {
            let port = self.next();
            if TcpListener::bind(("127.0.0.1", port)).is_ok() {
                return port;
            }
        }
        panic!("all ports that this process has claimed have a listener");
    }

    fn next(&mut self) -> u16 {
        let size = usize::from(BLOCK);
        if self.given == self.blocks.len() * size {
            let claimed = (self.blocks.len() < MOST_BLOCKS).then(|| self.claim());
            match claimed.flatten() {
                Some(claimed) => self.blocks.push(claimed),
                None => self.given = 0,
            }
        }
        let block = self.blocks.get(self.given / size);
        let (first, _) = block.expect("other test processes have claimed all ports");
        let port = first + u16::try_from(self.given % size).expect("less than the size of a block");
        self.given += 1;
        port
    }

    /// Claims a block: its first port is bound, but for UDP, which no server here uses.
    fn claim(&self) -> Option<(u16, UdpSocket)> {
        self.range
            .clone()
            .step_by(usize::from(BLOCK))
            .find_map(|first| Some((first, UdpSocket::bind(("127.0.0.1", first)).ok()?)))
    }
}

fn next_free(ports: &Mutex<Ports>) -> u16 {
    let mut ports = ports.lock().unwrap_or_else(PoisonError::into_inner);
    ports.next_free()
}

/// Returns a port of 127.0.0.1 that had no listener a moment ago. A process that is not a test may take it first: if the bind fails,
/// the caller must try again with the next port.
pub(crate) fn free_port() -> u16 {
    next_free(&OTHERS)
}

/// Returns a free port for the node of a cluster. The port of its bus is also free, and is part of the claim.
pub(crate) fn free_port_and_bus() -> u16 {
    for _ in 0..20 {
        let port = next_free(&NODES);
        if TcpListener::bind(("127.0.0.1", port + BUS)).is_ok() {
            return port;
        }
    }
    panic!("no free port with a free port of a bus in twenty attempts");
}

/// Returns a listener on a free port. A client can connect before a task serves it.
pub(crate) fn listen() -> (TcpListener, u16) {
    for _ in 0..20 {
        let port = free_port();
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(listener) => {
                listener.set_nonblocking(true).expect("a fresh socket");
                return (listener, port);
            }
            // Another process took the port meanwhile.
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => panic!("port {port}: {error}"),
        }
    }
    panic!("no free port in twenty attempts");
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: Range<u16> = 25_800..26_000;

    #[test]
    fn two_processes_claim_different_ports_and_reuse_only_their_own() {
        let (mut one, mut other) = (Ports::of(RANGE), Ports::of(RANGE));
        let first: Vec<_> = (0..BLOCK).map(|_| one.next()).collect();
        let second: Vec<_> = (0..BLOCK).map(|_| other.next()).collect();
        assert!(first.iter().all(|port| !second.contains(port)));
        assert_eq!(one.next(), first[0], "no block is left");
        drop(one);
        assert_eq!(
            other.next(),
            first[0],
            "the block of a process that has ended"
        );
    }
}
