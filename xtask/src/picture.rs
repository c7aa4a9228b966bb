//! `cargo xtask picture`: docs/pictures/demo.svg, the terminal's text of `weir demo --once` and `weir zpool status`.

use std::process::{Command, Stdio};

use crate::process::{Outcome, cargo, must, target, top};

/// Folder in which the demo keeps its pool, unless another one is named.
const FOLDER: &str = "/srv/weir-demo";
/// Width of a character in pixels, of a font of 13 pixels.
const CHARACTER_WIDTH: f64 = 7.83;
const LINE_HEIGHT: usize = 18;
const MARGIN: usize = 20;
const FIRST_LINE: usize = 50;

const STYLE: &str = "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,\"DejaVu Sans Mono\",monospace;\
fill:#d5dae2;white-space:pre}.command{fill:#8fd19e;font-weight:bold}.client{fill:#e8c87a}";

/// Runs the release build in FOLDER, which may not have a pool yet, and draws what it prints.
pub fn run(arguments: &[String]) -> Outcome {
    let folder = arguments.first().map_or(FOLDER, |folder| folder.as_str());
    if std::path::Path::new(folder).exists() {
        return Err(format!("picture: {folder} exists: remove it, or name another folder"));
    }
    must("build", &mut cargo(&["build", "--release", "--quiet", "-p", "weir"]))?;
    let mut text = String::new();
    for words in [["demo", "--once", "--dir", folder].as_slice(), &["zpool", "status", "-d", folder]] {
        let output = Command::new(target().join("release/weir")).args(words).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("picture: could not start: {error}"))?;
        let printed = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            return Err(format!(
                "picture: weir {} failed: {}",
                words.join(" "),
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        text.push_str(&format!("$ weir {}\n{printed}\n", words.join(" ")));
    }
    std::fs::remove_dir_all(folder).map_err(|error| format!("picture: {folder}: {error}"))?;
    let path = top().join("docs/pictures/demo.svg");
    std::fs::write(&path, svg(text.trim_end())).map_err(|error| format!("picture: {}: {error}", path.display()))?;
    println!("{}", path.display());
    Ok(())
}

/// The image of a terminal with this text. Lines that begin with `$ ` are commands, other indented lines with a port are for
/// clients.
fn svg(text: &str) -> String {
    let longest = text.lines().map(|line| line.chars().count()).max().unwrap_or_default();
    let width = 2 * MARGIN + (longest as f64 * CHARACTER_WIDTH) as usize;
    let height = FIRST_LINE + text.lines().count() * LINE_HEIGHT;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         role=\"img\" aria-label=\"terminal\">\n<style>{STYLE}</style>\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#171b22\"/>\n"
    );
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let class = match line {
            command if command.starts_with("$ ") => " class=\"command\"",
            client if client.starts_with("  ") && client.contains("127.0.0.1") => " class=\"client\"",
            _ => "",
        };
        let y = FIRST_LINE + at * LINE_HEIGHT;
        let line = line.replace('&', "&amp;").replace('<', "&lt;").replace('\t', "        ");
        out.push_str(&format!("<text x=\"{MARGIN}\" y=\"{y}\" xml:space=\"preserve\"{class}>{line}</text>\n"));
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_commands_are_marked() {
        let drawn = svg("$ weir x\n  a <b> & c\n\n  mount 127.0.0.1:/demo");
        assert!(drawn.contains("class=\"command\">$ weir x</text>"), "{drawn}");
        assert!(drawn.contains(">  a &lt;b> &amp; c</text>"), "{drawn}");
        assert!(drawn.contains("y=\"104\" xml:space=\"preserve\" class=\"client\">  mount"), "{drawn}");
        assert!(drawn.contains("height=\"122\""), "{drawn}");
    }
}
