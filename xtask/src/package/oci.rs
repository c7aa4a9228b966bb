//! An OCI image from nothing: the program, the libraries that it is linked with, and an empty state directory.
//!
//! | File of the archive | Content |
//! |---|---|
//! | `oci-layout`, `index.json` | version of the layout; the manifest's digest |
//! | `blobs/sha256/…` | manifest, configuration, and one layer: a tar archive, whose times are those of `SOURCE_DATE_EPOCH` |
//!
//! `podman load -i`, `skopeo copy oci-archive:…` and `docker load` (25 or later) read it. No container program is needed
//! to make it. A mount by FUSE and Samba need /dev/fuse, which the image does not ask for.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{empty, failed, output};
use crate::process::{Outcome, top};

/// User and group of the program in the image.
const USER: u32 = 65532;
/// Directories that belong to this user.
const OWN: [&str; 2] = ["run/weir", "var/lib/weir"];
/// Configuration in the image: a container's own loopback is reached by no client.
const CONFIGURATION: &str = "\
# In a container the service listens on all of its addresses. What is shared, and with whom, the datasets say.
listen = \"0.0.0.0\"
";

/// Writes the image of the staged files.
pub fn write(stage: &Path, archive: &Path) -> Outcome {
    let work = stage.join("oci");
    let root = work.join("root");
    let layout = work.join("layout");
    let blobs = layout.join("blobs/sha256");
    empty(&root)?;
    empty(&blobs)?;
    fill(stage, &root)?;
    let layer_file = work.join("layer.tar");
    pack_root(&root, &layer_file)?;
    let (layer, layer_bytes) = blob(&layer_file, &blobs)?;
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = serde_json::json!({
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "Entrypoint": ["/usr/bin/weir"],
            "Cmd": ["daemon"],
            "WorkingDir": "/var/lib/weir",
            "Env": [
                "PATH=/usr/bin", "HOME=/var/lib/weir", "RUNTIME_DIRECTORY=/run/weir", "STATE_DIRECTORY=/var/lib/weir",
                "CONFIGURATION_DIRECTORY=/etc/weir",
            ],
            "ExposedPorts": {"2049/tcp": {}, "3260/tcp": {}, "10809/tcp": {}},
            "Volumes": {"/var/lib/weir": {}},
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "Weir",
                "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer}")]},
        "history": [{"created_by": "cargo xtask package oci"}],
    });
    let (config, config_bytes) = json_blob(&config, &work, &blobs)?;
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json", "digest": format!("sha256:{config}"), "size": config_bytes,
        },
        "layers": [{
            "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": format!("sha256:{layer}"), "size": layer_bytes,
        }],
    });
    let (manifest, manifest_bytes) = json_blob(&manifest, &work, &blobs)?;
    let index = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": format!("sha256:{manifest}"),
            "size": manifest_bytes,
            "platform": {"architecture": architecture, "os": "linux"},
            "annotations": {"org.opencontainers.image.ref.name": concat!("weir:", env!("CARGO_PKG_VERSION"))},
        }],
    });
    text(&layout.join("index.json"), &index.to_string())?;
    text(&layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    output(tar(0).arg("-cf").arg(archive).arg("-C").arg(&layout).args(["oci-layout", "index.json", "blobs"]))
        .map(|_| ())
}

/// Lays out the root file system.
fn fill(stage: &Path, root: &Path) -> Outcome {
    let weir = stage.join("weir");
    copy(&weir, &root.join("usr/bin/weir"))?;
    for library in libraries(&weir)? {
        let inside = library.strip_prefix("/").map_err(|_| format!("{}: not absolute", library.display()))?;
        copy(&library, &root.join(inside))?;
    }
    for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
        copy(&top().join(name), &root.join("usr/share/doc/weir").join(name))?;
    }
    text(&root.join("etc/passwd"), &format!("root:x:0:0:root:/:/\nweir:x:{USER}:{USER}:Weir:/var/lib/weir:/\n"))?;
    text(&root.join("etc/group"), &format!("root:x:0:\nweir:x:{USER}:\n"))?;
    text(&root.join("etc/weir/weir.toml"), CONFIGURATION)?;
    for (folder, mode) in [("run/weir", 0o700), ("var/lib/weir", 0o700), ("tmp", 0o1777)] {
        let folder = root.join(folder);
        empty(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).map_err(|error| failed(&folder, &error))?;
    }
    Ok(())
}

/// Libraries of a program and their loader, as ldd(1) finds them; none for a static program.
fn libraries(program: &Path) -> Result<Vec<PathBuf>, String> {
    let listed = Command::new("ldd").arg(program).output().map_err(|error| format!("ldd: {error}"))?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    if let Some(line) = text.lines().find(|line| line.contains("not found")) {
        return Err(format!("ldd: {}", line.trim()));
    }
    Ok(paths(&text))
}

/// Paths in ldd's output.
fn paths(text: &str) -> Vec<PathBuf> {
    // `libc.so.6 => /lib/libc.so.6 (0x…)`, `/lib64/ld-linux-x86-64.so.2 (0x…)`
    let words = text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    words.map(PathBuf::from).collect()
}

fn copy(from: &Path, to: &Path) -> Outcome {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    }
    fs::copy(from, to).map(|_| ()).map_err(|error| failed(from, &error))
}

fn text(file: &Path, content: &str) -> Outcome {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    }
    fs::write(file, content).map_err(|error| failed(file, &error))
}

/// tar(1) for which the same files give the same bytes, whatever user packs them.
fn tar(owner: u32) -> Command {
    let time = std::env::var("SOURCE_DATE_EPOCH").unwrap_or_else(|_| "0".to_string());
    let mut command = Command::new("tar");
    command.args(["--sort=name", "--numeric-owner", "--format=gnu", &format!("--mtime=@{time}")]);
    command.args([format!("--owner={owner}"), format!("--group={owner}")]);
    command
}

/// Packs the root file system: the directories of the service belong to it, all others to root.
fn pack_root(root: &Path, archive: &Path) -> Outcome {
    let mut command = tar(0);
    command
        .args(OWN.map(|folder| format!("--exclude=./{folder}")))
        .arg("-cf")
        .arg(archive)
        .arg("-C")
        .arg(root)
        .arg(".");
    output(&mut command)?;
    let mut command = tar(USER);
    command.arg("-rf").arg(archive).arg("-C").arg(root).args(OWN.map(|folder| format!("./{folder}")));
    output(&mut command).map(|_| ())
}

/// Moves a file among the blobs, under its digest; returns digest and size.
fn blob(file: &Path, blobs: &Path) -> Result<(String, u64), String> {
    let sum = output(Command::new("sha256sum").arg("-b").arg(file))?;
    let sum = String::from_utf8_lossy(&sum).into_owned();
    let digest = sum.split_whitespace().next().unwrap_or_default().to_string();
    if digest.len() != 64 {
        return Err(format!("sha256sum printed {sum:?}"));
    }
    let bytes = fs::metadata(file).map_err(|error| failed(file, &error))?.len();
    fs::rename(file, blobs.join(&digest)).map_err(|error| failed(file, &error))?;
    Ok((digest, bytes))
}

/// Writes a JSON value as a blob; returns digest and size.
fn json_blob(value: &serde_json::Value, work: &Path, blobs: &Path) -> Result<(String, u64), String> {
    let file = work.join("blob.json");
    text(&file, &value.to_string())?;
    blob(&file, blobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_loader_are_found_in_the_output_of_ldd() {
        let text = "\tlinux-vdso.so.1 (0x00007f)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(paths(text), expected.map(PathBuf::from));
        assert_eq!(paths("\tnot a dynamic executable\n"), [] as [PathBuf; 0]);
    }
}
