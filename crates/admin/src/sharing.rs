//! Checks of what the values of properties share, before they are stored.

use crate::change::Change;
use crate::create::CreateDataset;
use crate::pool::Host;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{DslError, Setting};
use weir_front::shares;
use weir_machine::Machine;

/// The start of the names of user properties that mean something to Weir.
const OWN_PREFIX: &str = "weir:";
/// Those of them that are no property of sharing.
const OTHERS: [&str; 3] = ["weir:iscsi-reservations", "weir:csi", "weir:csi-nodes"];

/// Checks the value of a property of sharing (`sharenfs`, `sharesmb`, `weir:iscsi`, `weir:nbd`), and that a property whose name
/// begins with `weir:` exists; other properties pass.
///
/// # Errors
/// The reason with the word that is wrong.
pub fn check_share(property: &str, value: &str) -> Result<(), String> {
    check_name(property)?;
    shares::check(property, value).map_err(|why| format!("invalid value of '{property}': {why}"))
}

/// Names that begin with `weir:` are Weir's: a misspelt one would share nothing, and say nothing.
fn check_name(property: &str) -> Result<(), String> {
    let is_known = shares::PROPERTIES.contains(&property) || OTHERS.contains(&property);
    if is_known || !property.starts_with(OWN_PREFIX) {
        return Ok(());
    }
    Err(format!("invalid property '{property}': of those that begin with 'weir:' there are weir:iscsi and weir:nbd"))
}

/// Checks that the users and hosts exist which values of properties of sharing name.
///
/// # Errors
/// The first that does not exist, and the command that adds it.
pub async fn check_named<'a>(
    machine: &Machine,
    chap_users: impl Fn() -> Result<Vec<String>, String>,
    properties: impl IntoIterator<Item = (&'a String, &'a Value)>,
) -> Result<(), String> {
    for (property, value) in properties {
        let Value::Text(text) = value else { continue };
        let wrong = |why: String| format!("invalid value of '{property}': {why}");
        let named = shares::named_in(property, text);
        for user in named.chap_users {
            if !chap_users().map_err(wrong)?.contains(&user) {
                return Err(wrong(format!("there is no CHAP user '{user}'; 'weir user add {user}' adds it")));
            }
        }
        for host in named.hosts {
            match machine.net.resolve(&host).await {
                Ok(addresses) if !addresses.is_empty() => {}
                Ok(_) => return Err(wrong(format!("host name '{host}' has no address"))),
                Err(why) => return Err(wrong(format!("host name '{host}' cannot be resolved: {why}"))),
            }
        }
    }
    Ok(())
}

/// Checks that no other dataset has the name, or the logical unit, that a change would give a dataset.
///
/// # Errors
/// The first that is taken, and the dataset that has it.
pub(crate) fn check_names(host: &impl Host, change: &Change) -> Result<(), String> {
    let (Change::Create(CreateDataset { name, .. }) | Change::Clone { name, .. } | Change::Set { name, .. }) = change
    else {
        return Ok(());
    };
    for (property, value) in set_by(change) {
        let Value::Text(text) = value else { continue };
        if let Some(why) = host.share_conflict(name, property, text) {
            return Err(format!("invalid value of '{property}': {why}"));
        }
    }
    Ok(())
}

/// The values that a change sets.
pub(crate) fn set_by(change: &Change) -> Vec<(&String, &Value)> {
    match change {
        Change::Create(CreateDataset { properties, .. }) | Change::Clone { properties, .. } => {
            properties.iter().map(|(property, value)| (property, value)).collect()
        }
        Change::Set { settings, .. } => set_values(settings).collect(),
        _ => Vec::new(),
    }
}

/// Checks the values of the properties of a dataset.
pub(crate) fn check_values<'a>(
    name: &str,
    properties: impl Iterator<Item = (&'a String, &'a Value)>,
) -> Result<(), DslError> {
    for (property, value) in properties {
        let Value::Text(text) = value else { continue };
        let wrong = |why| DslError::Property { name: name.to_owned(), property: property.clone(), why };
        check_name(property).map_err(wrong)?;
        shares::check(property, text).map_err(|why| wrong(format!("has an invalid value: {why}")))?;
    }
    Ok(())
}

/// Checks the values that are set; received ones are kept whatever they are.
pub(crate) fn check_settings(name: &str, settings: &[(String, Setting)]) -> Result<(), DslError> {
    check_values(name, set_values(settings))
}

fn set_values(settings: &[(String, Setting)]) -> impl Iterator<Item = (&String, &Value)> {
    settings.iter().filter_map(|(property, setting)| match setting {
        Setting::Set(value) => Some((property, value)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_share_are_checked_and_others_pass() {
        let set = |property: &str, value: &str| {
            check_settings("p/a", &[(property.to_owned(), Setting::Set(Value::Text(value.to_owned())))])
        };
        assert_eq!(set("sharenfs", "rw=@10.0.0.0/8"), Ok(()));
        let error = set("sharenfs", "rw,sec=krb5").unwrap_err().to_string();
        assert!(error.contains("'sec=krb5': Kerberos is not supported"), "{error}");
        assert!(set("weir:nbd", "yes").is_err() && set("weir:iscsi", "target=x").is_err());
        assert!(set("sharesmb", "name=a/b").is_err());
        assert_eq!(set("org.example:sharenfs", "anything"), Ok(()));
        let error = set("weir:ndb", "on").unwrap_err().to_string();
        assert!(error.contains("invalid property 'weir:ndb'") && error.contains("weir:nbd"), "{error}");
        assert_eq!(set("weir", "on").and(set("weirdo:ndb", "on")), Ok(()));
        let received = Setting::Received(Value::Text("sec=krb5".into()));
        assert_eq!(check_settings("p/a", &[("sharenfs".to_owned(), received)]), Ok(()));
    }
}
