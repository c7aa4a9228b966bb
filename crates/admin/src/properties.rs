//! Properties of datasets, pools and vdevs as JSON.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use weir_dsl::props::{DatasetKind, Property, Source, Value};
use weir_dsl::sync_tasks::Setting;
use weir_dsl::{QuotaKind, QuotaPrincipal};
use weir_engine::VdevSetting;
use weir_pool::properties::{Origin, PoolProperty, Value as PoolValue};

/// A value: a JSON number or string.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum JsonValue {
    Number(u64),
    Text(String),
}

impl From<&Value> for JsonValue {
    fn from(value: &Value) -> Self {
        match value {
            Value::Number(number) => JsonValue::Number(*number),
            Value::Text(text) => JsonValue::Text(text.clone()),
        }
    }
}

impl From<JsonValue> for Value {
    fn from(value: JsonValue) -> Self {
        match value {
            JsonValue::Number(number) => Value::Number(number),
            JsonValue::Text(text) => Value::Text(text),
        }
    }
}

/// A setting: `{"set": 1}`, `"inherit"` and so on.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum JsonSetting {
    Set(JsonValue),
    Inherit,
    Revert,
    Received(JsonValue),
    Clear,
    ClearAll,
}

impl From<&Setting> for JsonSetting {
    fn from(setting: &Setting) -> Self {
        match setting {
            Setting::Set(value) => JsonSetting::Set(value.into()),
            Setting::Inherit => JsonSetting::Inherit,
            Setting::Revert => JsonSetting::Revert,
            Setting::Received(value) => JsonSetting::Received(value.into()),
            Setting::Clear => JsonSetting::Clear,
            Setting::ClearAll => JsonSetting::ClearAll,
        }
    }
}

impl From<JsonSetting> for Setting {
    fn from(setting: JsonSetting) -> Self {
        match setting {
            JsonSetting::Set(value) => Setting::Set(value.into()),
            JsonSetting::Inherit => Setting::Inherit,
            JsonSetting::Revert => Setting::Revert,
            JsonSetting::Received(value) => Setting::Received(value.into()),
            JsonSetting::Clear => Setting::Clear,
            JsonSetting::ClearAll => Setting::ClearAll,
        }
    }
}

/// A setting of a vdev: `{"number": 3}`, `{"text": "shelf 2"}` or `"remove"`.
#[derive(Serialize, Deserialize)]
#[serde(remote = "VdevSetting", rename_all = "snake_case")]
pub enum JsonVdevSetting {
    /// A number; 1 or 0 for on or off.
    Number(u64),
    /// A text.
    Text(String),
    /// No value.
    Remove,
}

/// Kind of a dataset.
#[derive(Serialize, Deserialize)]
#[serde(remote = "DatasetKind", rename_all = "snake_case")]
pub enum JsonKind {
    /// A file system.
    Filesystem,
    /// A volume.
    Volume,
    /// A snapshot.
    Snapshot,
    /// A bookmark.
    Bookmark,
}

/// Source of a value.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Source", rename_all = "snake_case")]
enum JsonSource {
    None,
    Default,
    Local,
    Inherited(String),
    Received,
}

/// A property of a dataset.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonProperty {
    name: String,
    value: JsonValue,
    #[serde(with = "JsonSource")]
    source: Source,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    received: Option<JsonValue>,
}

impl From<&Property> for JsonProperty {
    fn from(Property { name, value, source, received }: &Property) -> Self {
        let received = received.as_ref().map(JsonValue::from);
        JsonProperty { name: name.clone(), value: value.into(), source: source.clone(), received }
    }
}

impl From<JsonProperty> for Property {
    fn from(JsonProperty { name, value, source, received }: JsonProperty) -> Self {
        Property { name, value: value.into(), source, received: received.map(Value::from) }
    }
}

/// A value of a property of a pool or vdev.
#[derive(Serialize, Deserialize)]
#[serde(remote = "PoolValue", rename_all = "snake_case")]
enum JsonPoolValue {
    /// Text.
    Text(String),
    /// A number that is not rounded.
    Number(u64),
    /// A count.
    Count(u64),
    /// Bytes.
    Size(u64),
    /// Bytes, of which 0 means none.
    SizeIfAny(u64),
    /// A ratio in hundredths.
    Ratio(u64),
    /// Percent.
    Percent(u64),
}

/// Source of a value of a property of a pool or vdev.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Origin", rename_all = "snake_case")]
enum JsonOrigin {
    /// Computed.
    None,
    /// Not set.
    Default,
    /// Set.
    Local,
}

/// A property of a pool or vdev.
#[derive(Serialize, Deserialize)]
#[serde(remote = "PoolProperty", deny_unknown_fields)]
struct JsonPoolProperty {
    name: String,
    #[serde(with = "JsonPoolValue")]
    value: PoolValue,
    #[serde(with = "JsonOrigin")]
    origin: Origin,
}

/// Principal of a quota.
#[derive(Serialize, Deserialize)]
#[serde(remote = "QuotaPrincipal", rename_all = "snake_case")]
pub enum JsonPrincipal {
    /// A user.
    User,
    /// A group.
    Group,
    /// A project.
    Project,
}

/// Unit that a quota limits.
#[derive(Serialize, Deserialize)]
#[serde(remote = "QuotaKind", rename_all = "snake_case")]
pub enum JsonQuotaKind {
    /// Bytes.
    Bytes,
    /// Objects.
    Objects,
}

/// Serialization of `Vec<(String, Value)>`.
pub mod values {
    use super::*;

    /// Writes an object.
    pub fn serialize<S: Serializer>(list: &[(String, Value)], to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(list.iter().map(|(name, value)| (name, JsonValue::from(value))))
    }

    /// Reads an object.
    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<(String, Value)>, D::Error> {
        let map = BTreeMap::<String, JsonValue>::deserialize(from)?;
        Ok(map.into_iter().map(|(name, value)| (name, value.into())).collect())
    }
}

/// Serialization of `Vec<(String, Setting)>`.
pub mod settings {
    use super::*;

    /// Writes an object.
    pub fn serialize<S: Serializer>(list: &[(String, Setting)], to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(list.iter().map(|(name, setting)| (name, JsonSetting::from(setting))))
    }

    /// Reads an object.
    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<(String, Setting)>, D::Error> {
        let map = BTreeMap::<String, JsonSetting>::deserialize(from)?;
        Ok(map.into_iter().map(|(name, setting)| (name, setting.into())).collect())
    }
}

/// Serialization of `Vec<DatasetKind>`.
pub mod kinds {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Kind(#[serde(with = "JsonKind")] DatasetKind);

    /// Writes a list.
    pub fn serialize<S: Serializer>(list: &[DatasetKind], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(list.iter().map(|kind| Kind(*kind)))
    }

    /// Reads a list.
    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<DatasetKind>, D::Error> {
        Ok(Vec::<Kind>::deserialize(from)?.into_iter().map(|kind| kind.0).collect())
    }
}

/// Serialization of `Vec<Option<Property>>`.
pub mod found_properties {
    use super::*;

    /// Writes a list.
    pub fn serialize<S: Serializer>(list: &[Option<Property>], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(list.iter().map(|property| property.as_ref().map(JsonProperty::from)))
    }

    /// Reads a list.
    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<Option<Property>>, D::Error> {
        let list = Vec::<Option<JsonProperty>>::deserialize(from)?;
        Ok(list.into_iter().map(|property| property.map(Property::from)).collect())
    }
}

/// Serialization of `Vec<PoolProperty>`.
pub mod pool_properties {
    use super::*;

    #[derive(Serialize)]
    struct Given<'a>(#[serde(with = "JsonPoolProperty")] &'a PoolProperty);

    #[derive(Deserialize)]
    struct Read(#[serde(with = "JsonPoolProperty")] PoolProperty);

    /// Writes a list.
    pub fn serialize<S: Serializer>(list: &[PoolProperty], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(list.iter().map(Given))
    }

    /// Reads a list.
    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Vec<PoolProperty>, D::Error> {
        Ok(Vec::<Read>::deserialize(from)?.into_iter().map(|property| property.0).collect())
    }
}
