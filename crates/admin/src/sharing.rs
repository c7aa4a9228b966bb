//! Checks of what the values of properties share, before they are stored.

use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{DslError, Setting};
use weir_front::shares;

/// Checks the value of a property of sharing (`sharenfs`, `sharesmb`, `weir:iscsi`, `weir:nbd`); other properties pass.
///
/// # Errors
/// The reason with the word that is wrong.
pub fn check_share(property: &str, value: &str) -> Result<(), String> {
    shares::check(property, value).map_err(|why| format!("invalid value of '{property}': {why}"))
}

/// Checks the values of the properties of a dataset.
pub(crate) fn check_values<'a>(
    name: &str,
    properties: impl Iterator<Item = (&'a String, &'a Value)>,
) -> Result<(), DslError> {
    for (property, value) in properties {
        let Value::Text(text) = value else { continue };
        shares::check(property, text).map_err(|why| DslError::Property {
            name: name.to_owned(),
            property: property.clone(),
            why: format!("has an invalid value: {why}"),
        })?;
    }
    Ok(())
}

/// Checks the values that are set; received ones are kept whatever they are.
pub(crate) fn check_settings(name: &str, settings: &[(String, Setting)]) -> Result<(), DslError> {
    let values = settings.iter().filter_map(|(property, setting)| match setting {
        Setting::Set(value) => Some((property, value)),
        _ => None,
    });
    check_values(name, values)
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
        let received = Setting::Received(Value::Text("sec=krb5".into()));
        assert_eq!(check_settings("p/a", &[("sharenfs".to_owned(), received)]), Ok(()));
    }
}
