//! CHAP (RFC 1994, RFC 7143 12.1.3): the initiator proves that it knows a secret, and if it wants, the target does.
//!
//! ```text
//!   initiator                      target
//!   CHAP_A=7,5                ─►                       algorithms, best first
//!                             ◄─  CHAP_A=7 CHAP_I CHAP_C   challenge
//!   CHAP_N CHAP_R             ─►                       user and response
//!   [CHAP_I CHAP_C]           ◄─  [CHAP_N CHAP_R]      mutual: the same in the other direction
//! ```
//!
//! A response is the digest of identifier, secret and challenge. Responses are compared in constant time. A challenge that
//! repeats the target's own is refused: otherwise an initiator without the secret could have the target answer it.

use super::{Status, status};
use crate::wire::Keys;
use crate::wire::text::{binary, number, to_hex};
use md5::Md5;
use sha2::{Digest, Sha256};
use std::fmt;

/// Length of a challenge in bytes.
const CHALLENGE_BYTES: usize = 32;

/// A secret: neither printed nor logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// A secret with these bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Secret(bytes.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A user with a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Name.
    pub user: String,
    /// Secret.
    pub secret: Secret,
}

/// Authentication of a target: the initiator's user, and the target's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChapConfig {
    /// The initiator's user.
    pub initiator: Credentials,
    /// The target's user, for initiators that want proof.
    pub mutual: Option<Credentials>,
}

/// Digest algorithms, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Md5 = 5,
    Sha256 = 7,
}

impl Algorithm {
    fn digest(self, id: u8, secret: &Secret, challenge: &[u8]) -> Vec<u8> {
        let parts: [&[u8]; 3] = [&[id], &secret.0, challenge];
        match self {
            Algorithm::Md5 => parts.into_iter().fold(Md5::new(), Digest::chain_update).finalize().to_vec(),
            Algorithm::Sha256 => parts.into_iter().fold(Sha256::new(), Digest::chain_update).finalize().to_vec(),
        }
    }
}

/// Whether two byte strings are equal, in time that depends on their lengths only.
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |differing, (a, b)| differing | (a ^ b)) == 0
}

enum State {
    /// No algorithm is chosen.
    Begun,
    /// The challenge is sent.
    Challenged(Algorithm),
    /// The initiator is authenticated.
    Done,
}

/// An authentication in progress.
pub(super) struct Chap {
    config: ChapConfig,
    id: u8,
    challenge: [u8; CHALLENGE_BYTES],
    state: State,
}

impl Chap {
    /// Begins with random bytes for identifier and challenge.
    pub(super) fn new(config: ChapConfig, random: [u8; CHALLENGE_BYTES + 1]) -> Self {
        let [id, challenge @ ..] = random;
        Chap { config, id, challenge, state: State::Begun }
    }

    /// Whether the initiator is authenticated.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Answers a step of the initiator.
    pub(super) fn answer(&mut self, keys: &Keys, reply: &mut Keys) -> Result<(), Status> {
        let failed = Err(status::AUTHENTICATION_FAILURE);
        match (&self.state, keys.get("CHAP_A"), keys.get("CHAP_R")) {
            (State::Begun, Some(offered), None) => {
                let offers =
                    |algorithm: Algorithm| offered.split(',').any(|word| number(word) == Some(algorithm as u64));
                let chosen = [Algorithm::Sha256, Algorithm::Md5].into_iter().find(|algorithm| offers(*algorithm));
                let Some(algorithm) = chosen else { return failed };
                reply.push("CHAP_A", (algorithm as u8).to_string());
                reply.push("CHAP_I", self.id.to_string());
                reply.push("CHAP_C", to_hex(&self.challenge));
                self.state = State::Challenged(algorithm);
                Ok(())
            }
            (State::Challenged(algorithm), None, Some(response)) => self.check(*algorithm, response, keys, reply),
            (State::Begun, None, None) => Ok(()),
            _ => failed,
        }
    }

    fn check(&mut self, algorithm: Algorithm, response: &str, keys: &Keys, reply: &mut Keys) -> Result<(), Status> {
        let failed = Err(status::AUTHENTICATION_FAILURE);
        let Credentials { user, secret } = &self.config.initiator;
        let expected = algorithm.digest(self.id, secret, &self.challenge);
        let is_response = binary(response).is_some_and(|response| is_equal(&response, &expected));
        let is_user = keys.get("CHAP_N").is_some_and(|name| is_equal(name.as_bytes(), user.as_bytes()));
        if !is_response || !is_user {
            return failed;
        }
        let asked = (keys.get("CHAP_I"), keys.get("CHAP_C"));
        match (asked, &self.config.mutual) {
            ((None, None), _) => {}
            ((Some(id), Some(challenge)), Some(Credentials { user, secret })) => {
                let id = number(id).and_then(|id| u8::try_from(id).ok());
                let (Some(id), Some(challenge)) = (id, binary(challenge)) else { return failed };
                if is_equal(&challenge, &self.challenge) {
                    return failed;
                }
                reply.push("CHAP_N", user.clone());
                reply.push("CHAP_R", to_hex(&algorithm.digest(id, secret, &challenge)));
            }
            _ => return failed,
        }
        debug_assert!(matches!(self.state, State::Challenged(_)), "only a challenge is answered");
        self.state = State::Done;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chap(mutual: bool) -> Chap {
        let credentials = |user: &str, secret: &str| Credentials { user: user.into(), secret: Secret::new(secret) };
        let mutual = mutual.then(|| credentials("target", "another secret"));
        Chap::new(ChapConfig { initiator: credentials("user", "a long secret"), mutual }, [7; 33])
    }

    fn keys(pairs: &[(&str, &str)]) -> Keys {
        let mut keys = Keys::default();
        pairs.iter().for_each(|(key, value)| keys.push(key, *value));
        keys
    }

    fn step(chap: &mut Chap, pairs: &[(&str, &str)]) -> Result<Keys, Status> {
        let mut reply = Keys::default();
        chap.answer(&keys(pairs), &mut reply).map(|()| reply)
    }

    #[test]
    fn both_sides_prove_themselves() {
        for (offered, algorithm) in [("5", Algorithm::Md5), ("5,7", Algorithm::Sha256)] {
            let mut chap = chap(true);
            let reply = step(&mut chap, &[("CHAP_A", offered)]).unwrap();
            assert_eq!(reply.get("CHAP_A"), Some(&*(algorithm as u8).to_string()));
            let challenge = binary(reply.get("CHAP_C").unwrap()).unwrap();
            let response = to_hex(&algorithm.digest(7, &Secret::new("a long secret"), &challenge));
            let asked = [("CHAP_N", "user"), ("CHAP_R", &*response), ("CHAP_I", "9"), ("CHAP_C", "0x0102")];
            let reply = step(&mut chap, &asked).unwrap();
            let expected = to_hex(&algorithm.digest(9, &Secret::new("another secret"), &[1, 2]));
            assert_eq!((reply.get("CHAP_N"), reply.get("CHAP_R")), (Some("target"), Some(&*expected)));
            assert!(chap.is_done());
        }
    }

    #[test]
    fn who_does_not_know_the_secret_is_refused() {
        let refused = Err(status::AUTHENTICATION_FAILURE);
        let right = to_hex(&Algorithm::Md5.digest(7, &Secret::new("a long secret"), &[7; 32]));
        let own = to_hex(&[7; 32]);
        let attempts: [&[(&str, &str)]; 5] = [
            &[("CHAP_N", "user"), ("CHAP_R", "0x00")],
            &[("CHAP_N", "other"), ("CHAP_R", &right)],
            &[("CHAP_R", &right)],
            &[("CHAP_N", "user"), ("CHAP_R", &right), ("CHAP_I", "1"), ("CHAP_C", &own)],
            &[("CHAP_N", "user"), ("CHAP_R", &right), ("CHAP_I", "1")],
        ];
        for attempt in attempts {
            let mut chap = chap(true);
            step(&mut chap, &[("CHAP_A", "5")]).unwrap();
            assert_eq!(step(&mut chap, attempt), refused, "{attempt:?}");
            assert!(!chap.is_done());
        }
        assert_eq!(step(&mut chap(false), &[("CHAP_A", "6,8")]), refused);
        assert_eq!(step(&mut chap(false), &[("CHAP_R", "0x00")]), refused, "before the challenge");
        let mut without = chap(false);
        step(&mut without, &[("CHAP_A", "5")]).unwrap();
        let asked = [("CHAP_N", "user"), ("CHAP_R", &*right), ("CHAP_I", "1"), ("CHAP_C", "0x01")];
        assert_eq!(step(&mut without, &asked), refused, "the target has no secret of its own");
    }

    #[test]
    fn secrets_are_not_printed() {
        let printed = format!("{:?}", chap(true).config);
        assert!(printed.contains("user") && !printed.contains("secret\"") && !printed.contains("97"), "{printed}");
    }
}
