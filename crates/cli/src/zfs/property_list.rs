//! The list of properties that `zfs get`, `set` and `inherit` print if they are called without operands: completions of shells read
//! it.
//!
//! Source of the layout: OpenZFS `cmd/zfs/zfs_main.c` (`usage`, `usage_prop_cb`).

use crate::failure::Failure;
use weir_dsl::props::{NATIVES, Native, Rule, Shape, ZfsProp};

/// Properties of users, groups and projects, and the space since a snapshot: their columns `EDIT` and `VALUES`.
const OTHERS: [(&str, bool, &str); 14] = [
    ("userused@...", false, "<size>"),
    ("groupused@...", false, "<size>"),
    ("projectused@...", false, "<size>"),
    ("userobjused@...", false, "<size>"),
    ("groupobjused@...", false, "<size>"),
    ("projectobjused@...", false, "<size>"),
    ("userquota@...", true, "<size> | none"),
    ("groupquota@...", true, "<size> | none"),
    ("projectquota@...", true, "<size> | none"),
    ("userobjquota@...", true, "<size> | none"),
    ("groupobjquota@...", true, "<size> | none"),
    ("projectobjquota@...", true, "<size> | none"),
    ("written@<snap>", false, "<size>"),
    ("written#<bookmark>", false, "<size>"),
];

/// A failure for an invalid command line, with the list after the usage.
pub fn after(failure: Failure) -> Failure {
    let line = format!("{}\n\n{}", failure.line, text());
    failure.saying(line)
}

fn text() -> String {
    let mut out = "The following properties are supported:\n".to_owned();
    out += &format!("\n\t{:<21} EDIT  INHERIT   VALUES\n\n", "PROPERTY");
    let mut natives: Vec<&Native> = NATIVES.iter().collect();
    natives.sort_by_key(|native| native.prop.name());
    for native in natives {
        let is_count = native.prop.name().ends_with("_count");
        let is_settable = matches!(native.rule, Rule::Inherit | Rule::Own) && !is_count;
        let edits = is_settable || native.prop == ZfsProp::VolSize;
        out += &line(native.prop.name(), edits, native.rule == Rule::Inherit, &values(native));
    }
    for (name, edits, values) in OTHERS {
        out += &line(name, edits, false, values);
    }
    out.trim_end().to_owned()
}

fn line(name: &str, edits: bool, inherits: bool, values: &str) -> String {
    let edits = if edits { "YES" } else { " NO" };
    let inherits = if inherits { "YES" } else { " NO" };
    format!("\t{name:<22} {edits}      {inherits}   {values}\n")
}

fn values(native: &Native) -> String {
    match native.shape {
        Shape::Index(names) => {
            let mut texts: Vec<&str> = names.iter().map(|(text, _)| *text).collect();
            texts.dedup();
            texts.join(" | ")
        }
        Shape::Size => "<size>".into(),
        Shape::SizeOrNone => "<size> | none".into(),
        Shape::Number => "<number>".into(),
        Shape::CountOrNone => "<count> | none".into(),
        Shape::Ratio => "<1.00x or higher if compressed>".into(),
        Shape::Time => "<date>".into(),
        Shape::YesNo => "yes | no".into(),
        Shape::Text => match native.prop {
            ZfsProp::MountPoint => "<path> | legacy | none".into(),
            ZfsProp::KeyLocation => "prompt | <file URI> | <https URL> | <http URL>".into(),
            ZfsProp::ShareNfs => "on | off | NFS share options".into(),
            ZfsProp::ShareSmb => "on | off | SMB share options".into(),
            _ => "<text>".into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_the_columns_that_completions_read() {
        let text = text();
        let columns = |name: &str| {
            let line = text.lines().find(|line| line.split_whitespace().next() == Some(name)).unwrap();
            line.split_whitespace().skip(1).take(3).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(columns("PROPERTY"), ["EDIT", "INHERIT", "VALUES"]);
        assert_eq!(columns("atime"), ["YES", "YES", "off"]);
        assert_eq!(columns("used"), ["NO", "NO", "<size>"]);
        assert_eq!(columns("quota"), ["YES", "NO", "<size>"]);
        assert_eq!(columns("volsize"), ["YES", "NO", "<size>"]);
        assert_eq!(columns("userquota@..."), ["YES", "NO", "<size>"]);
        assert!(text.lines().skip(1).filter(|line| !line.is_empty()).all(|line| line.starts_with('\t')));
    }
}
