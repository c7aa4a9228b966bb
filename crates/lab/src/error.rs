//! Errors of the laboratory.

use std::path::{Path, PathBuf};

/// Error of a benchmark, a comparison or a report.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A file or directory cannot be read or written.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// File or directory.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The target cannot be measured as asked.
    #[error("{0}")]
    Target(String),
    /// The method's parameters exclude each other or are out of bounds.
    #[error("{0}")]
    Parameter(String),
    /// A text, such as a result or an access specification, is not in its format.
    #[error("{name}: {what}")]
    Format {
        /// File, or what the text is.
        name: String,
        /// Place and kind of the defect.
        what: String,
    },
    /// A server cannot be reached, refuses, breaks its protocol, or ended.
    #[error("{target}: {what}")]
    Server {
        /// The target.
        target: String,
        /// Event or refusal.
        what: String,
    },
    /// A program that carries the load is missing or failed.
    #[error("{program}: {what}")]
    Program {
        /// Name of the program.
        program: &'static str,
        /// The failure, and how to correct it.
        what: String,
    },
}

impl LabError {
    /// Error of the operating system at a path.
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { path, source }
    }

    /// Error in the format of a text.
    pub fn format(name: impl Into<String>, what: impl ToString) -> Self {
        Self::Format { name: name.into(), what: what.to_string() }
    }
}
