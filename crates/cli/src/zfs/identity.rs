//! Users, groups and projects in property names: `userquota@alice`, `groupused@100`, `projectobjquota@7`.

use std::fs::read_to_string;
use weir_admin::AccountProperty;
use weir_dsl::props::human_size;
use weir_dsl::{QuotaKind, QuotaPrincipal};
use weir_format::znode::Fuid;

/// The number of a name in a file like `/etc/passwd`.
fn number_in(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

fn name_in(text: &str, id: u64) -> Option<String> {
    let id = id.to_string();
    let line = text.lines().find(|line| line.split(':').nth(2) == Some(&id))?;
    line.split(':').next().map(str::to_owned)
}

fn list(who: QuotaPrincipal) -> String {
    // A machine without such a list knows no names.
    match who {
        QuotaPrincipal::User => read_to_string("/etc/passwd").unwrap_or_default(),
        QuotaPrincipal::Group => read_to_string("/etc/group").unwrap_or_default(),
        QuotaPrincipal::Project => String::new(),
    }
}

/// Parses a property name; `None` if it is none of these.
///
/// # Errors
/// Errors if the user or group is unknown.
pub fn parse(property: &str) -> Option<Result<AccountProperty, String>> {
    let (of, name) = AccountProperty::split(property)?;
    let id = name.parse::<u32>().map(u64::from).ok().or_else(|| number_in(&list(of.who), name));
    let principal = if of.who == QuotaPrincipal::Project { "project" } else { "user or group" };
    Some(id.map(|id| AccountProperty { id, ..of }).ok_or_else(|| format!("invalid {principal} '{name}'")))
}

/// A property name with the number of a user or group in place of its name; other names as they are.
pub fn numeric(property: &str) -> String {
    match (parse(property), property.split_once('@')) {
        (Some(Ok(of)), Some((kind, _))) => format!("{kind}@{}", of.id),
        _ => property.to_owned(),
    }
}

/// Principal of a default quota such as `defaultuserquota`, the limit of those without a quota of their own.
pub fn usual(property: &str) -> Option<(QuotaPrincipal, QuotaKind)> {
    let all = QuotaPrincipal::ALL.into_iter().flat_map(|who| QuotaKind::ALL.map(|what| (who, what)));
    all.into_iter().find(|(who, what)| who.default_name(*what) == property)
}

/// Parses a limit: a size, a count, or `none`.
///
/// # Errors
/// The message for a malformed limit.
pub fn limit(text: &str) -> Result<u64, String> {
    match text {
        "none" => Ok(0),
        text => crate::size::parse(text).ok_or_else(|| format!("bad numeric value '{text}'")),
    }
}

/// Parses the quota of a user, group or project and its limit; `None` if the property is none of a user, group or project.
///
/// # Errors
/// The message for a use, which cannot be set, an unknown user or group, or a malformed limit.
pub fn parse_quota(property: &str, value: &str) -> Option<Result<(AccountProperty, u64), String>> {
    Some(match parse(property)? {
        Ok(of) if !of.is_quota => Err(format!("'{property}' is readonly")),
        Ok(of) => limit(value).map(|limit| (of, limit)),
        Err(why) => Err(why),
    })
}

/// Name of a user, group or project, or its number if it has no name or `numeric` is set.
pub fn name(id: Fuid, numeric: bool, names: &str) -> String {
    let known = if numeric || id.domain() != 0 { None } else { name_in(names, id.0) };
    known.unwrap_or_else(|| id.0.to_string())
}

/// The number of a user or group of that name, in such a list.
pub fn number(names: &str, name: &str) -> Option<u64> {
    number_in(names, name)
}

/// Whether such a list has a user or group of that number.
pub fn has_number(names: &str, number: u64) -> bool {
    name_in(names, number).is_some()
}

/// List of the names of users, groups or projects on this host.
pub fn names(who: QuotaPrincipal) -> String {
    list(who)
}

/// A use or limit as text.
pub fn text(number: u64, what: QuotaKind, is_quota: bool, exact: bool) -> String {
    match what {
        _ if is_quota && number == 0 => if exact { "0" } else { "none" }.to_owned(),
        QuotaKind::Bytes if !exact => human_size(number),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_properties() {
        let of = |who, what, is_quota, id| Some(Ok(AccountProperty { who, what, is_quota, id }));
        assert_eq!(parse("userquota@0"), of(QuotaPrincipal::User, QuotaKind::Bytes, true, 0));
        assert_eq!(parse("userused@root"), of(QuotaPrincipal::User, QuotaKind::Bytes, false, 0));
        assert_eq!(parse("groupobjquota@12"), of(QuotaPrincipal::Group, QuotaKind::Objects, true, 12));
        assert_eq!(parse("projectobjused@7"), of(QuotaPrincipal::Project, QuotaKind::Objects, false, 7));
        assert!(matches!(parse("userquota@no-such-user"), Some(Err(_))));
        assert_eq!((parse("written@a"), parse("userquota"), parse("usersize@1")), (None, None, None));
        assert_eq!(numeric("userused@root"), "userused@0");
        assert_eq!(
            ["groupused@no-such-group", "written@a", "used"].map(numeric),
            ["groupused@no-such-group", "written@a", "used"]
        );
        assert_eq!((limit("none"), limit("1K")), (Ok(0), Ok(1024)));
        assert!(limit("much").is_err());
    }
}
