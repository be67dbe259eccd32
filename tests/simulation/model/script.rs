//! Runs Lua scripts as a server does: with `KEYS`, `ARGV` and `redis`.

use std::{cell::RefCell, collections::HashMap};

use mlua::{Function, Lua, MultiValue, Table, Value};

use super::{protocol::Reply, server::Server};

struct Engine {
    lua: Lua,
    /// The compiled scripts, by the hash of the text.
    scripts: RefCell<HashMap<String, Function>>,
}

thread_local! {
    /// An engine per thread, since making one costs more than running a scenario. A script leaves only globals, which the next
    /// script overwrites.
    static ENGINE: Engine = Engine::new();
    /// The server that is running a script.
    static RUNNING: RefCell<Option<(Server, Turn)>> = const { RefCell::new(None) };
}

/// The state of one run of a script.
struct Turn {
    /// The declared keys.
    keys: Vec<Vec<u8>>,
    now_us: i64,
    /// The error of the command that ended the script.
    error: Option<String>,
}

/// Runs a script on a server. Returns an error reply for any failure in it.
pub(crate) fn run(
    server: &mut Server,
    hash: &str,
    text: &[u8],
    keys: &[Vec<u8>],
    arguments: &[Vec<u8>],
    now_us: i64,
) -> Reply {
    let turn = Turn {
        keys: keys.to_vec(),
        now_us,
        error: None,
    };
    RUNNING.set(Some((std::mem::take(server), turn)));
    let result = ENGINE.with(|engine| engine.run(hash, text, keys, arguments));
    let (after, turn) = RUNNING.take().expect("set above");
    *server = after;
    let on = |error: &str| Reply::error(format!("{error} script: {hash}, on @user_script:1."));
    match (result, turn.error) {
        (Ok(reply), _) => reply,
        (Err(_), Some(error)) => on(&error),
        (Err(error), None) => on(&format!("ERR {error}")),
    }
}

impl Engine {
    fn new() -> Self {
        let lua = Lua::new();
        let redis = lua.create_table().expect("memory");
        let set = |name: &str, function: Function| redis.set(name, function).expect("memory");
        let call = |raises: bool| {
            let call = move |lua: &Lua, words: MultiValue| command(lua, &words, raises);
            lua.create_function(call).expect("memory")
        };
        set("call", call(true));
        set("pcall", call(false));
        let error = |lua: &Lua, text: mlua::LuaString| {
            let reply = lua.create_table()?;
            let bytes = text.as_bytes();
            let bytes = bytes.strip_prefix(b"-").unwrap_or(&bytes);
            reply.set("err", lua.create_string(bytes)?)?;
            Ok(reply)
        };
        let sha1hex = |_: &Lua, text: mlua::LuaString| {
            let digest = sha1_smol::Sha1::from(&*text.as_bytes()).digest();
            Ok(digest.to_string())
        };
        set("sha1hex", lua.create_function(sha1hex).expect("memory"));
        set("error_reply", lua.create_function(error).expect("memory"));
        lua.globals().set("redis", redis).expect("memory");
        Self {
            lua,
            scripts: RefCell::default(),
        }
    }

    fn run(
        &self,
        hash: &str,
        text: &[u8],
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
    ) -> mlua::Result<Reply> {
        let known = self.scripts.borrow().get(hash).cloned();
        let script = if let Some(script) = known {
            script
        } else {
            let script = self.lua.load(text).into_function()?;
            let mut scripts = self.scripts.borrow_mut();
            scripts.insert(hash.to_owned(), script.clone());
            script
        };
        for (name, words) in [("KEYS", keys), ("ARGV", arguments)] {
            let table = self.lua.create_table()?;
            for word in words {
                table.push(self.lua.create_string(word)?)?;
            }
            self.lua.globals().set(name, table)?;
        }
        reply(script.call::<Value>(())?)
    }
}

fn command(lua: &Lua, words: &MultiValue, raises: bool) -> mlua::Result<Value> {
    let words: Vec<Vec<u8>> = words.iter().map(word).collect();
    let reply = RUNNING.with_borrow_mut(|running| {
        let (server, turn) = running.as_mut().expect("a running script");
        for key in keys_of(&words) {
            // Some servers refuse such a script.
            let key_text = String::from_utf8_lossy(key);
            assert!(
                turn.keys.contains(key),
                "a script uses `{key_text}`, which it does not declare"
            );
        }
        let reply = server.execute_in_script(&words, turn.now_us);
        if let (Reply::Error(error), true) = (&reply, raises) {
            turn.error = Some(error.clone());
        }
        reply
    });
    match (reply, raises) {
        (Reply::Error(error), true) => Err(mlua::Error::runtime(error)),
        (reply, _) => value(lua, reply),
    }
}

/// Returns the keys among the words of a command.
fn keys_of(words: &[Vec<u8>]) -> &[Vec<u8>] {
    match &*words[0].to_ascii_uppercase() {
        b"TIME" | b"PUBLISH" | b"SPUBLISH" => &[],
        b"DEL" | b"EXISTS" | b"MGET" => &words[1..],
        _ => &words[1..2],
    }
}

/// Converts a value of a script to an argument of a command.
fn word(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.as_bytes().to_vec(),
        Value::Integer(number) => number.to_string().into(),
        Value::Number(number) if number.fract() == 0.0 && number.abs() < 1e17 => {
            format!("{number:.0}").into()
        }
        other => panic!("not modelled: {other:?} as a word of a command"),
    }
}

/// Converts the reply of a command to a value for the script.
fn value(lua: &Lua, reply: Reply) -> mlua::Result<Value> {
    let one = |name: &str, text: &str| -> mlua::Result<Value> {
        let table: Table = lua.create_table()?;
        table.set(name, text)?;
        Ok(Value::Table(table))
    };
    Ok(match reply {
        Reply::Status(text) => one("ok", text)?,
        Reply::Error(text) => one("err", &text)?,
        Reply::Int(number) => Value::Number(as_double(number)),
        Reply::Bulk(bytes) => Value::String(lua.create_string(bytes)?),
        Reply::Nil => Value::Boolean(false),
        Reply::Array(parts) => {
            let table = lua.create_table()?;
            for part in parts {
                table.push(value(lua, part)?)?;
            }
            Value::Table(table)
        }
        Reply::Map(_) | Reply::Push(_) => panic!("not modelled in a script: {reply:?}"),
    })
}

#[expect(
    clippy::cast_precision_loss,
    reason = "like a server: Lua 5.1 only has doubles"
)]
fn as_double(number: i64) -> f64 {
    number as f64
}

/// Converts the result of a script to the reply for its caller.
fn reply(value: Value) -> mlua::Result<Reply> {
    Ok(match value {
        Value::Nil | Value::Boolean(false) => Reply::Nil,
        Value::Boolean(true) => Reply::Int(1),
        Value::Integer(number) => Reply::Int(number),
        Value::Number(number) => Reply::Int(truncated(number)),
        Value::String(text) => Reply::Bulk(text.as_bytes().to_vec()),
        Value::Table(table) => {
            if let Some(error) = table.get::<Option<mlua::LuaString>>("err")? {
                return Ok(Reply::Error(error.to_string_lossy()));
            }
            if table.contains_key("ok")? {
                return Ok(Reply::Status("OK"));
            }
            let parts = table.sequence_values::<Value>();
            Reply::Array(
                parts
                    .map(|part| reply(part?))
                    .collect::<mlua::Result<_>>()?,
            )
        }
        other => panic!("not modelled: {other:?} as the result of a script"),
    })
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "like a server, which truncates fractions"
)]
fn truncated(number: f64) -> i64 {
    number as i64
}
