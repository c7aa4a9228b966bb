//! A browser, if there is one, driven over the DevTools protocol through pipes: messages of JSON, each with a NUL at its
//! end, in at descriptor 3 and out at descriptor 4.

use super::has;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Browsers that are tried.
const PROGRAMS: [&str; 2] = ["chromium-headless-shell", "chromium"];
const FLAGS: &str = "--headless --no-sandbox --disable-gpu --no-first-run --remote-debugging-pipe";
/// Time for an answer of the browser.
const ANSWER_TIME: Duration = Duration::from_secs(60);

/// A browser with one page.
pub struct Browser {
    child: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    last: u64,
    session: Value,
    /// Exceptions of scripts, and errors that the browser logged.
    pub errors: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _code = self.child.wait();
    }
}

impl Browser {
    /// A browser with an empty page; `None` if none is installed.
    pub fn start() -> Option<Browser> {
        let program = PROGRAMS.into_iter().find(|program| has(program))?;
        let profile = tempfile::tempdir().unwrap();
        // The shell connects the pipes with the descriptors, and becomes the browser.
        let line = format!("exec {program} {FLAGS} --user-data-dir=\"$1\" 3<&0 4>&1 </dev/null >/dev/null");
        let mut shell = Command::new("sh");
        shell.args(["-c", &line, "sh"]).arg(profile.path());
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            let all = output.split(0).map_while(Result::ok).map(|bytes| serde_json::from_slice(&bytes).unwrap());
            // The test may have ended.
            all.take_while(|message| sender.send(Value::clone(message)).is_ok()).for_each(drop);
        });
        let last = 0;
        let mut browser =
            Browser { child, input, messages, last, session: Value::Null, errors: Vec::new(), _profile: profile };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        browser.session = browser.call("Target.attachToTarget", attach)["sessionId"].take();
        ["Runtime.enable", "Log.enable", "Page.enable"]
            .into_iter()
            .for_each(|method| drop(browser.call(method, json!({}))));
        Some(browser)
    }

    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": params});
        if self.session.is_string() {
            message["sessionId"] = self.session.clone();
        }
        write!(self.input, "{message}\0").unwrap();
        loop {
            let mut message = self.messages.recv_timeout(ANSWER_TIME).unwrap();
            if message["id"] == self.last {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].take();
            }
            let is_error = message["method"] == "Runtime.exceptionThrown" || message["method"] == "Log.entryAdded";
            if is_error {
                self.errors.push(message["params"].to_string());
            }
        }
    }

    /// The value of an expression on the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut answer = self.call("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    pub fn text(&mut self, expression: &str) -> String {
        self.value(expression).as_str().unwrap_or_default().to_owned()
    }
}
