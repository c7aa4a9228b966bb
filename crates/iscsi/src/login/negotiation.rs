//! Operational parameters of a session (RFC 7143, 13): what the initiator offers and what the target answers.

use crate::wire::Digests;
use crate::wire::text::number;

/// Data that the target accepts in one unit, in bytes.
pub const MAX_RECEIVE_BYTES: u32 = 256 << 10;
/// Maximum length in bytes of a sequence of data units.
const MAX_BURST_BYTES: u64 = 1 << 20;
/// Maximum length in bytes of data that are sent without being asked for, per command.
pub const FIRST_BURST_BYTES: u32 = 64 << 10;
/// Maximum number of sequences of one command that the target asks for at once.
const MAX_REQUESTED_BURSTS: u64 = 4;
/// Seconds after which an initiator may connect again.
const TIME_TO_WAIT: u64 = 2;

/// Parameters that initiator and target have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Digests after login.
    pub digests: Digests,
    /// Data that the initiator accepts in one unit, in bytes.
    pub max_send_bytes: u32,
    /// Maximum length of a sequence of data units in bytes.
    pub max_burst_bytes: u32,
    /// Maximum length of unsolicited data in bytes.
    pub first_burst_bytes: u32,
    /// Whether data other than immediate ones must be asked for.
    pub initial_r2t: bool,
    /// Whether commands may carry data.
    pub immediate_data: bool,
    /// Maximum number of outstanding R2Ts of a command.
    pub max_r2t: u32,
}

impl Default for Parameters {
    /// The values of a session that negotiates nothing.
    fn default() -> Self {
        Parameters {
            digests: Digests::default(),
            max_send_bytes: 8192,
            max_burst_bytes: 256 << 10,
            first_burst_bytes: FIRST_BURST_BYTES,
            initial_r2t: true,
            immediate_data: true,
            max_r2t: 1,
        }
    }
}

/// Range of lengths in texts, in bytes.
const LENGTHS: std::ops::RangeInclusive<u64> = 512..=(1 << 24) - 1;

/// Answers an offered parameter, and records the result. `None`: the key is a declaration, which has no answer.
///
/// # Errors
/// The value is invalid.
pub(crate) fn answer(
    key: &str,
    value: &str,
    is_discovery: bool,
    parameters: &mut Parameters,
) -> Result<Option<String>, InvalidValue> {
    let within = |range: std::ops::RangeInclusive<u64>| number(value).filter(|n| range.contains(n)).ok_or(InvalidValue);
    let truth = || match value {
        "Yes" => Ok(true),
        "No" => Ok(false),
        _ => Err(InvalidValue),
    };
    let text = |is_true: bool| Ok(Some(if is_true { "Yes" } else { "No" }.to_owned()));
    let ignored_in_discovery = [
        "MaxConnections",
        "InitialR2T",
        "ImmediateData",
        "MaxBurstLength",
        "FirstBurstLength",
        "MaxOutstandingR2T",
        "DataPDUInOrder",
        "DataSequenceInOrder",
    ];
    if is_discovery && ignored_in_discovery.contains(&key) {
        return Ok(Some("Irrelevant".to_owned()));
    }
    match key {
        "HeaderDigest" => Ok(Some(digest(value, &mut parameters.digests.header))),
        "DataDigest" => Ok(Some(digest(value, &mut parameters.digests.data))),
        "MaxRecvDataSegmentLength" => {
            parameters.max_send_bytes = within(LENGTHS)? as u32;
            Ok(None)
        }
        "MaxBurstLength" => {
            let agreed = within(LENGTHS)?.min(MAX_BURST_BYTES);
            parameters.max_burst_bytes = agreed as u32;
            Ok(Some(agreed.to_string()))
        }
        "FirstBurstLength" => {
            let agreed = within(LENGTHS)?.min(FIRST_BURST_BYTES.into());
            parameters.first_burst_bytes = agreed as u32;
            Ok(Some(agreed.to_string()))
        }
        "InitialR2T" => {
            parameters.initial_r2t = truth()?;
            text(parameters.initial_r2t)
        }
        "ImmediateData" => {
            parameters.immediate_data = truth()?;
            text(parameters.immediate_data)
        }
        "MaxOutstandingR2T" => {
            let agreed = within(1..=65535)?.min(MAX_REQUESTED_BURSTS);
            parameters.max_r2t = agreed as u32;
            Ok(Some(agreed.to_string()))
        }
        "MaxConnections" => within(1..=65535).map(|_| Some("1".to_owned())),
        "ErrorRecoveryLevel" => within(0..=2).map(|_| Some("0".to_owned())),
        "DefaultTime2Wait" => within(0..=3600).map(|offered| Some(offered.max(TIME_TO_WAIT).to_string())),
        "DefaultTime2Retain" => within(0..=3600).map(|_| Some("0".to_owned())),
        "iSCSIProtocolLevel" => within(0..=31).map(|offered| Some(offered.min(1).to_string())),
        "DataPDUInOrder" | "DataSequenceInOrder" => truth().and_then(|_| text(true)),
        "TaskReporting" => {
            Ok(Some(if value.split(',').any(|word| word == "RFC3720") { "RFC3720" } else { "Reject" }.into()))
        }
        // Markers are obsolete.
        "IFMarker" | "OFMarker" => text(false),
        "IFMarkInt" | "OFMarkInt" => Ok(Some("Reject".to_owned())),
        "InitiatorAlias" => Ok(None),
        _ => Ok(Some("NotUnderstood".to_owned())),
    }
}

/// A value that the key does not permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidValue;

/// Chooses the first digest of a list that is supported.
fn digest(offered: &str, agreed: &mut bool) -> String {
    let chosen = offered.split(',').find(|word| matches!(*word, "CRC32C" | "None"));
    *agreed = chosen == Some("CRC32C");
    chosen.unwrap_or("Reject").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_its_result_function() {
        let mut parameters = Parameters::default();
        let mut answered = |key, value| answer(key, value, false, &mut parameters);
        let said = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(answered("HeaderDigest", "X-md5,CRC32C,None"), said("CRC32C"));
        assert_eq!(answered("DataDigest", "None,CRC32C"), said("None"));
        assert_eq!(answered("MaxBurstLength", "16776192"), said("1048576"));
        assert_eq!(answered("FirstBurstLength", "0x4000"), said("16384"));
        assert_eq!(answered("MaxRecvDataSegmentLength", "65536"), Ok(None));
        assert_eq!(answered("InitialR2T", "No"), said("No"));
        assert_eq!(answered("ImmediateData", "No"), said("No"));
        assert_eq!(answered("MaxOutstandingR2T", "16"), said("4"));
        assert_eq!(answered("MaxConnections", "8"), said("1"));
        assert_eq!(answered("ErrorRecoveryLevel", "2"), said("0"));
        assert_eq!(answered("DefaultTime2Wait", "0"), said("2"));
        assert_eq!(answered("DataPDUInOrder", "No"), said("Yes"));
        assert_eq!(answered("X-com.example", "1"), said("NotUnderstood"));
        for (key, value) in [("MaxBurstLength", "511"), ("InitialR2T", "yes"), ("MaxConnections", "0")] {
            assert_eq!(answered(key, value), Err(InvalidValue));
        }
        assert_eq!(parameters.digests, Digests { header: true, data: false });
        let expected = (1 << 20, 16384, 65536, 4, false, false);
        let Parameters {
            max_burst_bytes, first_burst_bytes, max_send_bytes, max_r2t, initial_r2t, immediate_data, ..
        } = parameters;
        let found = (max_burst_bytes, first_burst_bytes, max_send_bytes, max_r2t, initial_r2t, immediate_data);
        assert_eq!(found, expected);
        assert_eq!(answer("InitialR2T", "No", true, &mut parameters), said("Irrelevant"));
    }
}
