//! A server that acts between two commands of one message.

use std::sync::{Arc, Mutex};

use lock_core::LockManager;
use lock_tests::{FakeServer, HANG, Kind, RedisServer, Reply, connect_with_time_out};
use redis::Value;

/// A server in front of a real one. It runs a hook before one command.
pub(crate) struct Between {
    pub(crate) server: Arc<RedisServer>,
    front: FakeServer,
    hook: Arc<Mutex<Option<Hook>>>,
}

/// A command, and the function to call before it is executed.
type Hook = (&'static str, Box<dyn FnOnce(&RedisServer) + Send>);

impl Between {
    /// Starts a server of this kind behind a front that offers no messages, so managers poll.
    pub(crate) fn start(kind: Kind) -> Self {
        let server = Arc::new(RedisServer::builder().kind(kind).start());
        let hook = Arc::<Mutex<Option<Hook>>>::default();
        let (here, armed) = (server.clone(), hook.clone());
        let front = FakeServer::start(move |words| {
            // Each command is forwarded on a connection of its own, on which no message could arrive.
            match words[0].as_str() {
                "HELLO" => return Reply::line("-ERR unknown command 'HELLO'"),
                "SUBSCRIBE" => return Reply::line("-NOPERM no messages"),
                "CLIENT" => return Reply::line("+OK"),
                _ => {}
            }
            let due = armed
                .lock()
                .expect("no panic")
                .take_if(|hook| hook.0 == words[0]);
            if let Some((_, before)) = due {
                before(&here);
            }
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            Reply::Bytes(match here.try_cli(&words) {
                Ok(value) => reply(&value),
                Err(error) => {
                    let code = error.code().unwrap_or("ERR");
                    format!("-{code} {}\r\n", error.detail().unwrap_or_default()).into()
                }
            })
        });
        Self {
            server,
            front,
            hook,
        }
    }

    pub(crate) async fn connect(&self) -> LockManager {
        connect_with_time_out(HANG, &self.front.url()).await
    }

    /// Calls `hook` once, before the next command of this name is executed.
    pub(crate) fn before(
        &self,
        command: &'static str,
        hook: impl FnOnce(&RedisServer) + Send + 'static,
    ) {
        *self.hook.lock().expect("no panic") = Some((command, Box::new(hook)));
    }
}

/// Returns the bytes of a reply.
fn reply(value: &Value) -> Vec<u8> {
    match value {
        Value::Okay => b"+OK\r\n".to_vec(),
        Value::SimpleString(text) => format!("+{text}\r\n").into_bytes(),
        Value::Int(number) => format!(":{number}\r\n").into_bytes(),
        Value::BulkString(bytes) => {
            let length = format!("${}\r\n", bytes.len()).into_bytes();
            [&length[..], bytes, b"\r\n"].concat()
        }
        Value::Array(all) => {
            let length = format!("*{}\r\n", all.len()).into_bytes();
            let all = all.iter().map(reply);
            [length].into_iter().chain(all).flatten().collect()
        }
        _ => b"$-1\r\n".to_vec(),
    }
}
