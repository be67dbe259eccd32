//! A headless Chromium, driven through `ChromeDriver`'s HTTP interface.

use std::{env, fs, fs::File, path::Path, time::Duration};

use lock_tests::{HttpRequest, Process, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::timeout;

/// Many times longer than Chromium needs to start, to allow for a machine that is busy with a build.
const READY_WITHIN: Duration = Duration::from_mins(1);

/// A browser and its driver. Both are children of the test, and end with it, whereas a browser started by `ChromeDriver` would
/// outlive the test.
pub(crate) struct Browser {
    session: String,
    _driver: Process,
    _chromium: Process,
    _profile: TempDir,
}

impl Browser {
    pub(crate) async fn start() -> Self {
        let profile = tempfile::tempdir().expect("a temporary folder");
        let log = File::create(profile.path().join("log")).expect("a file");
        let data = format!("--user-data-dir={}", profile.path().display());
        let flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-dev-shm-usage \
            --disable-background-networking --disable-component-update --disable-sync --hide-scrollbars \
            --remote-debugging-port=0 about:blank";
        let arguments: Vec<&str> = flags.split_whitespace().chain([&*data]).collect();
        let chromium = Process::spawn_with_log(program(), &arguments, log);
        let mut driver = Process::spawn("chromedriver", &["--port=0"], &[]);
        let port = loop {
            let line = driver.line();
            if let Some((_, port)) = line.split_once("started successfully on port ") {
                break port.trim_end_matches('.').to_owned();
            }
        };

        let file = profile.path().join("DevToolsActivePort");
        let mut debugger = String::new();
        eventually(READY_WITHIN, "chromium listens", async || {
            let text = fs::read_to_string(&file).unwrap_or_default();
            // The file is complete when there is a line after the port.
            text.lines()
                .next()
                .unwrap_or_default()
                .clone_into(&mut debugger);
            text.contains('\n')
        })
        .await;
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"debuggerAddress": format!("127.0.0.1:{debugger}")},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let sessions = format!("http://127.0.0.1:{port}/session");
        let made = ask("POST", &sessions, &capabilities).await;
        let id = made["sessionId"].as_str().expect("a session");
        Self {
            session: format!("{sessions}/{id}"),
            _driver: driver,
            _chromium: chromium,
            _profile: profile,
        }
    }

    pub(crate) async fn open(&self, url: &str) {
        self.post("url", &json!({"url": url})).await;
    }

    /// Clicks the element that this CSS selector finds, as a user would.
    pub(crate) async fn click(&self, selector: &str) {
        let element = self.find(selector).await;
        self.post(&format!("{element}/click"), &json!({})).await;
    }

    /// Returns the text that a user sees in an element: an empty one, if the element is hidden.
    pub(crate) async fn text(&self, selector: &str) -> String {
        let element = self.find(selector).await;
        let text = self.get(&format!("{element}/text")).await;
        text.as_str().expect("text").to_owned()
    }

    /// Runs the body of a JavaScript function, and returns its value.
    pub(crate) async fn script(&self, body: &str) -> Value {
        let call = json!({"script": body, "args": []});
        self.post("execute/sync", &call).await
    }

    /// Makes the page record each text that it shows in an element from now on, since a text may be gone before the next query.
    pub(crate) async fn record(&self, selector: &str) {
        let body = format!(
            "window.shown ??= {{}};
            const shown = (window.shown[{selector:?}] = []);
            const place = document.querySelector({selector:?});
            new MutationObserver(() => shown.push(place.textContent)).observe(place, {{childList: true}});"
        );
        self.script(&body).await;
    }

    /// Returns the texts shown since [`record`](Self::record), in order.
    pub(crate) async fn recorded(&self, selector: &str) -> Vec<String> {
        let texts = self
            .script(&format!("return window.shown[{selector:?}]"))
            .await;
        serde_json::from_value(texts).expect("texts")
    }

    /// Sets the size of the page, and its light or dark scheme.
    pub(crate) async fn look(&self, (width, height): (u32, u32), scheme: &str) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", size)
            .await;
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", features).await;
    }

    /// Writes a picture of the page into a PNG file.
    pub(crate) async fn screenshot(&self, file: &Path) {
        let picture = self.get("screenshot").await;
        let picture = from_base64(picture.as_str().expect("text"));
        assert!(picture.starts_with(b"\x89PNG"), "no picture");
        fs::write(file, picture).expect("a file that can be written");
    }

    /// Returns the errors and warnings on the browser's console since the last call.
    pub(crate) async fn complaints(&self) -> Vec<Value> {
        let log = self.post("se/log", &json!({"type": "browser"})).await;
        let entries = log.as_array().expect("a list").iter();
        let complains =
            |entry: &&Value| matches!(entry["level"].as_str(), Some("SEVERE" | "WARNING"));
        entries.filter(complains).cloned().collect()
    }

    async fn find(&self, selector: &str) -> String {
        let query = json!({"using": "css selector", "value": selector});
        let found = self.post("element", &query).await;
        let element = found.as_object().and_then(|found| found.values().next());
        let element = element.and_then(Value::as_str).expect("an element");
        format!("element/{element}")
    }

    async fn devtools(&self, command: &str, parameters: Value) {
        let call = json!({"cmd": command, "params": parameters});
        self.post("goog/cdp/execute", &call).await;
    }

    async fn get(&self, path: &str) -> Value {
        ask("GET", &format!("{}/{path}", self.session), &json!({})).await
    }

    async fn post(&self, path: &str, json: &Value) -> Value {
        ask("POST", &format!("{}/{path}", self.session), json).await
    }
}

/// Returns the name of Debian's Chromium, or of its replacement on other systems.
fn program() -> &'static str {
    let search = env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &str| env::split_paths(&search).any(|folder| folder.join(name).is_file());
    let found = ["chromium", "google-chrome"]
        .into_iter()
        .find(|name| is_there(name));
    // If there is none, the error names this program.
    found.unwrap_or("chromium")
}

async fn ask(method: &str, url: &str, json: &Value) -> Value {
    let request = HttpRequest::send(method, url, &json.to_string()).await;
    let response = timeout(READY_WITHIN, request.expect("a driver").response()).await;
    let response = response.expect("an answer in time").expect("a response");
    assert_eq!(response.status, 200, "{method} {url}: {}", response.body);
    let response: Value = serde_json::from_str(&response.body).expect("JSON");
    response["value"].clone()
}

fn from_base64(text: &str) -> Vec<u8> {
    let digit = |letter| match letter {
        b'A'..=b'Z' => Some(letter - b'A'),
        b'a'..=b'z' => Some(letter - b'a' + 26),
        b'0'..=b'9' => Some(letter - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits: Vec<u32> = text.bytes().filter_map(digit).map(u32::from).collect();
    let bytes = |four: &[u32]| {
        let bits = four.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - four.len()));
        bits.to_be_bytes()[1..four.len()].to_vec()
    };
    digits.chunks(4).flat_map(bytes).collect()
}

#[test]
fn base64_is_read_whatever_the_length() {
    let text = |base64| String::from_utf8(from_base64(base64)).expect("text");
    assert_eq!(text("Zmxhc2g="), "flash");
    assert_eq!(text("c2FsZQ=="), "sale");
    assert_eq!(text("Pz8/fn5+"), "???~~~");
}
