//! The data that the locks protect: a number for each key. It refuses late writers, and an increment has to read it and write
//! it back. If two holders increment at once, one increment is missing in the end.
//!
//! The registers are in the process of the soak, so they survive all faults of the lock servers. Contenders send lines:
//! `announce <key> <token>`, `read <key>`, `write <key> <token> <value>`, and `complain <key> <token> <since>` if they were
//! refused while their lease had been valid since then. Answers are `yes`, `no`, or a number.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use lock_core::{FencingToken, fenced::Fence};
use lock_tests::history::{Moment, Window};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    runtime::Runtime,
};

/// The separator between a key and the number of a permit: each permit has a register of its own.
pub(crate) const PERMIT: char = '#';

#[derive(Debug, Default)]
struct Cell {
    largest: (u64, u64),
    value: u64,
    accepted: u64,
    refused: u64,
}

/// A holder that was refused though its lease was valid.
#[derive(Debug, Clone)]
pub(crate) struct Complaint {
    /// The time from the grant of its lease until its complaint.
    pub(crate) held: Window,
    pub(crate) key: String,
    pub(crate) token: u64,
    pub(crate) largest: u64,
}

#[derive(Debug, Default)]
struct Cells {
    by_key: BTreeMap<String, Cell>,
    complaints: Vec<Complaint>,
}

impl Cells {
    fn reply(&mut self, line: &str) -> Option<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: &str| word.parse::<u64>().ok();
        let cell = self.by_key.entry((*words.get(1)?).to_owned()).or_default();
        let done = match *words {
            ["announce", _, token, holder] => {
                let announced = (number(token)?, number(holder)?);
                let is_new = announced.0 > cell.largest.0 || announced == cell.largest;
                if is_new {
                    cell.largest = announced;
                }
                cell.refused += u64::from(!is_new);
                is_new
            }
            ["write", _, token, holder, value] => {
                let is_latest = (number(token)?, number(holder)?) == cell.largest;
                if is_latest {
                    cell.value = number(value)?;
                    cell.accepted += 1;
                } else {
                    cell.refused += 1;
                }
                is_latest
            }
            ["complain", key, token, since] => {
                let held = Window {
                    from: Moment::from_nanos(number(since)?),
                    to: Moment::now(),
                };
                let complaint = Complaint {
                    held,
                    key: key.split(PERMIT).next().unwrap_or(key).to_owned(),
                    token: number(token)?,
                    largest: cell.largest.0,
                };
                self.complaints.push(complaint);
                true
            }
            ["read", _] => return Some(cell.value.to_string()),
            _ => return None,
        };
        Some(if done { "yes" } else { "no" }.to_owned())
    }
}

/// The registers, served until this is dropped.
#[derive(Debug)]
pub(crate) struct Registers {
    address: SocketAddr,
    cells: Arc<Mutex<Cells>>,
    _runtime: Runtime,
}

impl Registers {
    pub(crate) fn start() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_io()
            .build()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        let cells = Arc::<Mutex<Cells>>::default();
        let served = Arc::clone(&cells);
        runtime.spawn(async move {
            // The loop ends with the runtime.
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&served)));
            }
        });
        Ok(Self {
            address,
            cells,
            _runtime: runtime,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the holders that were refused since the last call although their leases were valid.
    pub(crate) fn complaints(&self) -> Vec<Complaint> {
        std::mem::take(
            &mut self
                .cells
                .lock()
                .expect("no panic while it is locked")
                .complaints,
        )
    }

    /// Returns how many increments were accepted and how many refused.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let cells = self.cells.lock().expect("no panic while it is locked");
        let counts = cells
            .by_key
            .values()
            .map(|cell| (cell.accepted, cell.refused));
        counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Returns a line for each register that has not as many increments as were accepted.
    pub(crate) fn missing(&self) -> Vec<String> {
        let cells = self.cells.lock().expect("no panic while it is locked");
        let missing = cells
            .by_key
            .iter()
            .filter(|(_, cell)| cell.value != cell.accepted);
        missing
            .map(
                |(
                    key,
                    Cell {
                        value, accepted, ..
                    },
                )| {
                    format!("the register of {key} is {value} after {accepted} increments")
                },
            )
            .collect()
    }
}

async fn serve(stream: TcpStream, cells: Arc<Mutex<Cells>>) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    loop {
        line.clear();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return Some(());
        }
        let reply = cells
            .lock()
            .expect("no panic while it is locked")
            .reply(&line);
        let reply = reply.expect("a contender speaks this language") + "\n";
        stream.write_all(reply.as_bytes()).await.ok()?;
    }
}

/// A contender's connection to the register of one key.
#[derive(Debug)]
pub(crate) struct Register {
    key: String,
    stream: BufReader<TcpStream>,
}

impl Register {
    pub(crate) async fn connect(address: SocketAddr, key: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            key: key.to_owned(),
            stream: BufReader::new(stream),
        })
    }

    /// The same connection for another key. To be called between two requests.
    pub(crate) fn of(mut self, key: &str) -> Self {
        key.clone_into(&mut self.key);
        self
    }

    /// Reports a refusal although the lease had been valid since `since`.
    pub(crate) async fn complain(&mut self, token: FencingToken, since: Moment) -> io::Result<()> {
        let line = format!("complain {} {token} {since}\n", self.key);
        self.ask(&line).await.map(drop)
    }

    async fn ask(&mut self, line: &str) -> io::Result<String> {
        self.stream.write_all(line.as_bytes()).await?;
        let mut reply = String::new();
        self.stream.read_line(&mut reply).await?;
        reply.truncate(reply.trim_end().len());
        Ok(reply)
    }

    async fn may(&mut self, fence: Fence, line: &str) -> Result<(), FenceError> {
        match self.ask(line).await?.as_str() {
            "yes" => Ok(()),
            _ => Err(FenceError::Refused(fence.token)),
        }
    }

    /// Announces the fence, and returns the number.
    pub(crate) async fn look(&mut self, fence: Fence) -> Result<u64, FenceError> {
        let Fence { token, holder, .. } = fence;
        let line = format!("announce {} {token} {holder}\n", self.key);
        self.may(fence, &line).await?;
        let line = format!("read {}\n", self.key);
        let reply = self.ask(&line).await?;
        Ok(reply.parse().map_err(io::Error::other)?)
    }

    /// Announces the fence, reads the number, and writes the next one.
    pub(crate) async fn count_up(&mut self, fence: Fence) -> Result<(), FenceError> {
        let value = self.look(fence).await? + 1;
        let Fence { token, holder, .. } = fence;
        let line = format!("write {} {token} {holder} {value}\n", self.key);
        self.may(fence, &line).await
    }
}

/// Why the register was not read or changed.
#[derive(Debug)]
pub(crate) enum FenceError {
    /// The fence of a later holder was announced.
    Refused(FencingToken),
    Io(io::Error),
}

impl From<io::Error> for FenceError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_equal_token_of_another_holder_is_refused() {
        let mut cells = Cells::default();
        let mut say = |line: &str| cells.reply(line).expect(line);
        assert_eq!(say("announce k 5 1"), "yes");
        assert_eq!(say("announce k 5 2"), "no");
        assert_eq!(say("write k 5 2 7"), "no");
        assert_eq!(say("announce k 5 1"), "yes");
        assert_eq!(say("write k 5 1 1"), "yes");
        assert_eq!(say("read k"), "1");
    }

    #[test]
    fn late_tokens_are_refused_and_lost_increments_are_missed() {
        let mut cells = Cells::default();
        let mut say = |line: &str| cells.reply(line).expect(line);
        assert_eq!(say("announce k 5 1"), "yes");
        assert_eq!(say("read k"), "0");
        assert_eq!(say("write k 5 1 1"), "yes");
        assert_eq!(say("announce k 4 1"), "no");
        assert_eq!(say("write k 4 1 2"), "no");
        // One increment is lost.
        assert_eq!(say("write k 5 1 2"), "yes");
        assert_eq!(say("write k 5 1 2"), "yes");
        let cell = &cells.by_key["k"];
        assert_eq!((cell.value, cell.accepted, cell.refused), (2, 3, 2));
        assert_eq!(cells.reply("nonsense k"), None);
    }
}
