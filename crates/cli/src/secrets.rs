//! Wrapping keys entered by users: at a prompt without echo, as a line of standard input if that is not a terminal, or
//! in a file (OpenZFS `lib/libzfs/libzfs_crypto.c`).

use crate::call::{Call, Input, errln};
use crate::failure::Failure;
use std::io::Read;
use std::path::PathBuf;
use weir_codec::CodecError;
use weir_codec::crypt::{Suite, WrappingKey};
use weir_dmu::ObjectError;
use weir_dsl::props::Value;
use weir_dsl::{Dsl, KeyFormat};
use weir_engine::{Crypt, Encryption, NewRoot};
use weir_machine::{Machine, Request};
use weir_pool::{OpenOptions, Pool, PoolError};

/// Maximum accepted size of a key file in bytes, larger than any key.
const MAX_KEY_FILE_BYTES: u64 = 4096;

/// A user's key, overwritten with zeros when it is dropped.
pub struct Secret(Vec<u8>);

impl Secret {
    /// Returns the bytes; the caller is then responsible for erasing them.
    pub fn take(mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }

    fn text(&self) -> &[u8] {
        self.0.strip_suffix(b"\n").unwrap_or(&self.0)
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fill(0);
        // Prevents the compiler from removing a write whose result is never read.
        std::hint::black_box(&self.0);
    }
}

/// Source of the keys that a user enters.
#[derive(Clone, Copy)]
pub enum KeyPrompt<'a> {
    /// The caller of a command.
    Caller(&'a Call),
    /// This process's own standard input.
    Own,
}

impl KeyPrompt<'_> {
    fn input(self, wanted: Input) -> Option<Secret> {
        match self {
            KeyPrompt::Caller(call) => call.ask(wanted).map(Secret),
            KeyPrompt::Own => Some(Secret(wanted.read())).filter(|key| !key.0.is_empty()),
        }
    }

    fn line(self, prompt: String) -> Result<Secret, Failure> {
        self.input(Input::Line(prompt)).ok_or_else(|| Failure::failed("no key was given"))
    }

    /// Reads a raw key and up to one byte more, so that a key that is too long is detected.
    fn raw(self) -> Result<Secret, Failure> {
        let none = "no raw key on standard input: it cannot be entered on a terminal";
        self.input(Input::Bytes(WrappingKey::BYTES as u32 + 1)).ok_or_else(|| Failure::failed(none))
    }

    /// Prints a line on standard error.
    fn tell(self, line: &str) {
        match self {
            KeyPrompt::Caller(call) => errln!(call, "{line}"),
            KeyPrompt::Own => eprintln!("{line}"),
        }
    }

    fn path(self, given: &str) -> PathBuf {
        match self {
            KeyPrompt::Caller(call) => call.path(given),
            KeyPrompt::Own => PathBuf::from(given),
        }
    }

    /// Reads the key of `dataset` from `location` (the property `keylocation`). A new key is confirmed by a second
    /// line, if there is one.
    pub fn read(self, format: KeyFormat, location: &str, dataset: &str, is_new: bool) -> Result<Secret, Failure> {
        if location != "prompt" {
            return self.file(location);
        }
        let what = match format {
            KeyFormat::Raw => {
                let key = self.raw()?;
                return check(format, &key).map(|()| key);
            }
            KeyFormat::Hex => "hex key",
            KeyFormat::Passphrase => "passphrase",
        };
        let new = if is_new { "new " } else { "" };
        let first = self.line(format!("Enter {new}{what} for '{dataset}': "))?;
        check(format, &first)?;
        if is_new
            && let Ok(again) = self.line(format!("Re-enter {new}{what} for '{dataset}': "))
            && again.text() != first.text()
        {
            return Err(Failure::failed("Provided keys do not match."));
        }
        Ok(first)
    }

    fn file(self, location: &str) -> Result<Secret, Failure> {
        let Some(path) = location.strip_prefix("file://") else {
            let why = format!("keylocation '{location}': keys are read from 'prompt' or file://PATH alone");
            return Err(Failure::failed(why));
        };
        let path = self.path(path);
        let failed =
            |why: String| Failure::failed(format!("Failed to open key material file {}: {why}", path.display()));
        let file = std::fs::File::open(&path).map_err(|error| failed(error.to_string()))?;
        let mut key = Secret(Vec::with_capacity(MAX_KEY_FILE_BYTES as usize + 1));
        file.take(MAX_KEY_FILE_BYTES + 1).read_to_end(&mut key.0).map_err(|error| failed(error.to_string()))?;
        if key.0.len() as u64 > MAX_KEY_FILE_BYTES {
            return Err(failed("it is too large to be a key".into()));
        }
        Ok(key)
    }
}

/// Checks the length and digits of a key, with OpenZFS's error messages.
fn check(format: KeyFormat, key: &Secret) -> Result<(), Failure> {
    let text = key.text();
    let wrong = match format {
        KeyFormat::Raw if key.0.len() < WrappingKey::BYTES => "Raw key too short (expected 32).",
        KeyFormat::Raw if key.0.len() > WrappingKey::BYTES => "Raw key too long (expected 32).",
        KeyFormat::Hex if text.len() < 2 * WrappingKey::BYTES => "Hex key too short (expected 64).",
        KeyFormat::Hex if text.len() > 2 * WrappingKey::BYTES => "Hex key too long (expected 64).",
        KeyFormat::Hex if !text.iter().all(u8::is_ascii_hexdigit) => "Invalid hex character detected.",
        KeyFormat::Passphrase if text.len() < 8 => "Passphrase too short (min 8).",
        KeyFormat::Passphrase if text.len() > 512 => "Passphrase too long (max 512).",
        _ => return Ok(()),
    };
    Err(Failure::failed(wrong))
}

/// Encryption properties of a command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct EncryptionArgs {
    crypt: Crypt,
    format: Option<KeyFormat>,
    location: Option<String>,
    iterations: Option<u64>,
}

impl EncryptionArgs {
    /// Removes the encryption properties from the properties of a new dataset.
    pub fn take(properties: &mut Vec<(String, Value)>) -> Self {
        /// `encryption`: inherit 0, on 1, off 2, then the ciphers.
        const INHERIT: u64 = 0;
        const ON: u64 = 1;
        let mut wanted = EncryptionArgs::default();
        properties.retain(|(name, value)| {
            match (name.as_str(), value) {
                ("encryption", Value::Number(INHERIT)) => wanted.crypt = Crypt::Inherit,
                ("encryption", Value::Number(ON)) => wanted.crypt = Crypt::With(Suite::Aes256Gcm),
                ("encryption", Value::Number(n)) => wanted.crypt = Suite::from_u64(*n).map_or(Crypt::Off, Crypt::With),
                ("keyformat", Value::Number(n)) => wanted.format = KeyFormat::from_u64(*n),
                ("keylocation", Value::Text(text)) => {
                    wanted.location = Some(text.clone()).filter(|text| text != "none")
                }
                ("pbkdf2iters", Value::Number(n)) => wanted.iterations = Some(*n),
                _ => return true,
            }
            false
        });
        wanted
    }

    /// Removes the key properties from the properties of a change of key, which keeps the cipher.
    pub fn take_of_key(properties: &mut Vec<(String, Value)>) -> Self {
        let mut of_key = Vec::new();
        properties.retain(|property| {
            let is_key = ["keyformat", "keylocation", "pbkdf2iters"].contains(&property.0.as_str());
            of_key.extend(is_key.then(|| property.clone()));
            !is_key
        });
        Self::take(&mut of_key)
    }

    /// Whether the key is read from standard input.
    pub fn reads_standard_input(&self) -> bool {
        !self.has_no_key() && self.location.as_deref().is_none_or(|location| location == "prompt")
    }

    /// Whether no key property is given.
    fn has_no_key(&self) -> bool {
        self.format.is_none() && self.location.is_none() && self.iterations.is_none()
    }

    /// Whether properties of a key are given, and whether the dataset is encrypted depends on its parent.
    pub fn needs_encryption(&self) -> bool {
        self.crypt == Crypt::Inherit && !self.has_no_key()
    }

    /// Whether properties of a key are given for the root of a pool that is not encrypted: it inherits nothing.
    pub fn has_unused_key(&self) -> bool {
        matches!(self.crypt, Crypt::Inherit | Crypt::Off) && !self.has_no_key()
    }

    /// Says that a property of a key is given for a dataset that is not encrypted; `option` sets properties of it.
    pub fn without_encryption(&self, option: char) -> String {
        let property = match self {
            EncryptionArgs { format: Some(_), .. } => "keyformat",
            EncryptionArgs { location: Some(_), .. } => "keylocation",
            _ => "pbkdf2iters",
        };
        format!(
            "'{property}' is a property of encrypted datasets, and encryption is off: add '-{option} encryption=on'"
        )
    }

    /// Checks the properties before any prompt, and returns the format of the key if one is required.
    fn check(&self) -> Result<Option<KeyFormat>, Failure> {
        if self.crypt == Crypt::Off && !self.has_no_key() {
            return Err(Failure::failed(self.without_encryption('o')));
        }
        if self.has_no_key() {
            return Ok(None);
        }
        let format = self.format.ok_or_else(|| Failure::failed("Keyformat required for new encryption root."))?;
        if format != KeyFormat::Passphrase && self.iterations.is_some() {
            return Err(Failure::failed("Cannot specify pbkdf2iters with a non-passphrase keyformat."));
        }
        if self.iterations.is_some_and(|n| n < WrappingKey::MIN_ITERATIONS) {
            return Err(Failure::failed(format!("Minimum pbkdf2 iterations is {}.", WrappingKey::MIN_ITERATIONS)));
        }
        Ok(Some(format))
    }

    /// Reads the key of a new encryption root from the user; `None` if the dataset inherits its key.
    pub async fn root(
        &self,
        prompt: KeyPrompt<'_>,
        machine: &Machine,
        dataset: &str,
    ) -> Result<Option<NewRoot>, Failure> {
        let Some(format) = self.check()? else { return Ok(None) };
        let location = self.location.as_deref().unwrap_or("prompt");
        let key = prompt.read(format, location, dataset, true)?;
        check(format, &key)?;
        Ok(Some(NewRoot::new(machine, dataset, format, location, self.iterations, key.take()).await?))
    }

    /// The encryption of a new dataset.
    pub async fn encryption(
        &self,
        prompt: KeyPrompt<'_>,
        machine: &Machine,
        dataset: &str,
    ) -> Result<Encryption, Failure> {
        Ok(Encryption { crypt: self.crypt, root: self.root(prompt, machine, dataset).await? })
    }

    /// Takes the format and location that are not given from an existing encryption root.
    pub fn or(self, root: Option<Root>) -> Self {
        let Some(root) = root else { return self };
        EncryptionArgs { format: self.format.or(root.format), location: self.location.or(Some(root.location)), ..self }
    }
}

/// An encryption root of a pool, and the location of its key.
#[derive(Clone, Debug)]
pub struct Root {
    /// Name of the dataset.
    pub name: String,
    /// Property `keyformat`.
    pub format: Option<KeyFormat>,
    /// Property `keylocation`.
    pub location: String,
}

impl Root {
    /// Reads the key from the user or file.
    pub fn key(&self, prompt: KeyPrompt<'_>) -> Result<Secret, Failure> {
        let format = self.format.ok_or_else(|| Failure::failed("its key is of unknown format"))?;
        let key = prompt.read(format, &self.location, &self.name, false)?;
        check(format, &key).map(|()| key)
    }
}

/// Encryption roots among the datasets whose names satisfy `wanted`.
pub async fn roots(rq: &Request, dsl: &Dsl, wanted: impl Fn(&str) -> bool) -> Result<Vec<Root>, PoolError> {
    let mut out = Vec::new();
    for dir in dsl.visible_dirs().into_iter().filter(|dir| wanted(&dir.name)) {
        let Some(spec) = weir_dsl::keys::key_spec(dsl, rq, dir).await?.filter(|spec| spec.root == dir.id) else {
            continue;
        };
        let stored = dsl.stored(rq, dir).await?;
        let location = match stored.get("keylocation") {
            Some(Value::Text(text)) => text.clone(),
            _ => "prompt".to_owned(),
        };
        out.push(Root { name: dir.name.clone(), format: spec.format, location });
    }
    Ok(out)
}

/// Reads the key of an encryption root and verifies that it unwraps the dataset's keys.
pub async fn verified_key(prompt: KeyPrompt<'_>, dsl: &Dsl, root: &Root) -> Result<Secret, Failure> {
    let rq = Request::internal("load-key");
    let name = &root.name;
    let refused = |why: &dyn std::fmt::Display| Failure::failed(format!("Key load error: {why}"));
    let dir = dsl.dir_named(name).ok_or_else(|| refused(&format!("'{name}' does not exist.")))?;
    let key = root.key(prompt).map_err(|failure| refused(&failure))?;
    match weir_dsl::keys::load_keys(dsl, &rq, dir, &key.0).await {
        Ok(_) => Ok(key),
        Err(ObjectError::Key { error: CodecError::WrongKey, .. }) => {
            Err(refused(&format!("Incorrect key provided for '{name}'.")))
        }
        Err(other) => Err(refused(&other)),
    }
}

/// Reads the keys of all encryption roots that `options` lacks (`-l`), prints how many were loaded, and adds them to
/// `options`. Datasets without a key stay locked. Returns whether all keys were loaded.
pub fn ask_all(prompt: KeyPrompt<'_>, machine: &Machine, options: &mut OpenOptions) -> Result<bool, Failure> {
    let pool = machine.block_on(Pool::open(machine, options))?;
    let given = |name: &str| options.keys.iter().any(|(root, _)| root == name);
    let wanted = machine.block_on(roots(&Request::internal("load-key"), &pool.dsl, |name| !given(name)))?;
    let mut count = 0;
    for root in &wanted {
        match machine.block_on(verified_key(prompt, &pool.dsl, root)) {
            Ok(key) => {
                options.keys.push((root.name.clone(), key.take()));
                count += 1;
            }
            Err(failure) => prompt.tell(&failure.to_string()),
        }
    }
    if !wanted.is_empty() {
        prompt.tell(&format!("{count} / {} keys successfully loaded", wanted.len()));
    }
    Ok(count == wanted.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encryption_properties_are_removed_from_the_properties() {
        let number = |name: &str, n| (name.to_owned(), Value::Number(n));
        let location = ("keylocation".to_owned(), Value::Text("file:///k".into()));
        let mut properties = vec![
            number("encryption", 1),
            number("keyformat", 3),
            number("atime", 0),
            number("pbkdf2iters", 7),
            location,
        ];
        let wanted = EncryptionArgs::take(&mut properties);
        assert_eq!(properties, [number("atime", 0)]);
        let expected = EncryptionArgs {
            crypt: Crypt::With(Suite::Aes256Gcm),
            format: Some(KeyFormat::Passphrase),
            location: Some("file:///k".into()),
            iterations: Some(7),
        };
        assert_eq!(wanted, expected);
        for (value, crypt) in [(2, Crypt::Off), (3, Crypt::With(Suite::Aes128Ccm)), (0, Crypt::Inherit)] {
            assert_eq!(EncryptionArgs::take(&mut vec![number("encryption", value)]).crypt, crypt);
        }
    }

    #[test]
    fn invalid_keys_have_openzfs_error_messages() {
        for (format, key, why) in [
            (KeyFormat::Passphrase, "seven77".to_owned(), Some("Passphrase too short (min 8).")),
            (KeyFormat::Passphrase, "eight888\n".to_owned(), None),
            (KeyFormat::Passphrase, "x".repeat(513), Some("Passphrase too long (max 512).")),
            (KeyFormat::Hex, "2a".repeat(31), Some("Hex key too short (expected 64).")),
            (KeyFormat::Hex, "2a".repeat(32), None),
            (KeyFormat::Hex, "2x".repeat(32), Some("Invalid hex character detected.")),
            (KeyFormat::Raw, "x".repeat(33), Some("Raw key too long (expected 32).")),
        ] {
            let checked = check(format, &Secret(key.into_bytes()));
            assert_eq!(checked.err().map(|failure| failure.line).as_deref(), why);
        }
    }

    #[test]
    fn contradictory_key_properties_are_refused() {
        let refused = |wanted: EncryptionArgs| wanted.check().unwrap_err().line;
        let crypt = Crypt::With(Suite::Aes256Gcm);
        let location = Some("prompt".to_owned());
        assert!(
            refused(EncryptionArgs { crypt, location, ..EncryptionArgs::default() }).contains("Keyformat required")
        );
        let format = Some(KeyFormat::Hex);
        let iterations = Some(200_000);
        assert!(
            refused(EncryptionArgs { crypt, format, iterations, ..EncryptionArgs::default() }).contains("pbkdf2iters")
        );
        let format = Some(KeyFormat::Passphrase);
        let iterations = Some(99_999);
        assert!(refused(EncryptionArgs { crypt, format, iterations, ..EncryptionArgs::default() }).contains("100000"));
        assert!(
            refused(EncryptionArgs { crypt: Crypt::Off, format, ..EncryptionArgs::default() })
                .contains("encryption is off")
        );
    }
}
