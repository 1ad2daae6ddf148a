//! The keys with which an MRC signs capabilities and OSDs verify them.
//!
//! A ring holds the newest keys. The MRC signs with the newest of all; OSDs learn the whole ring
//! with each heartbeat, so a new key is known everywhere before the last capability under the old
//! one has expired.
//!
//! What is signed, every field at its fixed place, numbers little-endian:
//!
//! ```text
//! offset  bytes
//!      0     16  "xtfs capability1"
//!     16     16  volume
//!     32      8  data (content number)
//!     40      1  read (0, 1)
//!     41      1  write (0, 1)
//!     42     16  session
//!     58      8  session epoch
//!     66      4  view
//!     70      8  truncate epoch
//!     78      8  expires: seconds
//!     86      4  expires: nanoseconds
//!     90      4  key id
//! ```

use std::collections::BTreeMap;
use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::capability::Capability;
use crate::env::Env;
use crate::error::{Code, Error, Result};
use crate::time::Time;

/// A key of 32 random bytes.
pub type Key = [u8; 32];

const DOMAIN: &[u8; 16] = b"xtfs capability1";

/// The newest signing keys by id. An empty ring verifies nothing, and nothing verifies what it
/// signs.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct KeyRing {
    keys: BTreeMap<u32, Key>,
}

impl KeyRing {
    /// Most keys that a ring keeps; adding another one drops the oldest.
    pub const KEYS_MAX: usize = 4;

    /// A ring with one new random key.
    #[must_use]
    pub fn generate(env: &Env) -> Self {
        let mut ring = Self::default();
        ring.rotate(env);
        ring
    }

    /// A ring of known keys; of more than [`KeyRing::KEYS_MAX`] the newest (those with the
    /// highest ids) are kept.
    #[must_use]
    pub fn from_keys(keys: impl IntoIterator<Item = (u32, Key)>) -> Self {
        let mut ring = Self {
            keys: keys.into_iter().collect(),
        };
        ring.trim();
        ring
    }

    /// Adds a new random key, which signs from now on. Returns its id.
    pub fn rotate(&mut self, env: &Env) -> u32 {
        let id = self.current_id().map_or(1, |id| id.saturating_add(1));
        self.keys.insert(id, env.random());
        self.trim();
        id
    }

    /// Id of the key that signs; `None` when the ring is empty.
    #[must_use]
    pub fn current_id(&self) -> Option<u32> {
        self.keys.last_key_value().map(|(id, _)| *id)
    }

    /// Every key with its id, oldest first: what a heartbeat answers to an OSD.
    #[must_use]
    pub fn keys(&self) -> Vec<(u32, Key)> {
        self.keys.iter().map(|(id, key)| (*id, *key)).collect()
    }

    /// The capability with the id of the newest key and its code.
    #[must_use]
    pub fn sign(&self, mut capability: Capability) -> Capability {
        capability.key_id = 0;
        capability.mac = [0; 32];
        if let Some((id, key)) = self.keys.last_key_value() {
            capability.key_id = *id;
            if let Some(mac) = code(key, &capability) {
                capability.mac = mac.finalize().into_bytes().into();
            }
        }
        capability
    }

    /// Was it signed with a key of this ring, and has it not expired at `now`?
    ///
    /// # Errors
    /// [`Code::BadCapability`] that says why, with [`Retry::Reopen`](crate::Retry::Reopen).
    pub fn verify(&self, capability: &Capability, now: Time) -> Result<()> {
        let refused = |why: &str| {
            let context = format!("capability for {}: {why}", capability.file);
            Err(Error::reopen(Code::BadCapability, context))
        };
        let Some(key) = self.keys.get(&capability.key_id) else {
            return refused("signed with an unknown key");
        };
        let genuine =
            code(key, capability).is_some_and(|mac| mac.verify_slice(&capability.mac).is_ok());
        if !genuine {
            return refused("code does not match");
        }
        if capability.expires < now {
            return refused("expired");
        }
        Ok(())
    }

    fn trim(&mut self) {
        while self.keys.len() > Self::KEYS_MAX {
            self.keys.pop_first();
        }
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.keys.keys()).finish()
    }
}

/// The code over everything but the code itself. HMAC takes keys of any length, so `None` does
/// not happen.
fn code(key: &Key, capability: &Capability) -> Option<Hmac<Sha256>> {
    let Capability {
        file,
        read,
        write,
        session,
        session_epoch,
        view,
        truncate_epoch,
        expires,
        key_id,
        mac: _,
    } = capability;
    let mut code = <Hmac<Sha256> as KeyInit>::new_from_slice(key).ok()?;
    code.update(DOMAIN);
    code.update(&file.volume.0);
    code.update(&file.data.to_le_bytes());
    code.update(&[u8::from(*read), u8::from(*write)]);
    code.update(&session.0);
    code.update(&session_epoch.to_le_bytes());
    code.update(&view.to_le_bytes());
    code.update(&truncate_epoch.to_le_bytes());
    code.update(&expires.secs.to_le_bytes());
    code.update(&expires.nanos.to_le_bytes());
    code.update(&key_id.to_le_bytes());
    Some(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Retry;
    use crate::ids::{FileId, SessionId, VolumeId};

    const NOON: Time = Time {
        secs: 43_200,
        nanos: 5,
    };

    fn capability() -> Capability {
        Capability {
            file: FileId {
                volume: VolumeId([1; 16]),
                data: 2,
            },
            read: true,
            write: false,
            session: SessionId([3; 16]),
            session_epoch: 4,
            view: 5,
            truncate_epoch: 6,
            expires: NOON,
            key_id: 0,
            mac: [0; 32],
        }
    }

    #[test]
    fn any_changed_field_is_refused() {
        let ring = KeyRing::generate(&Env::simulated(1));
        let signed = ring.sign(capability());
        assert_eq!(ring.verify(&signed, NOON), Ok(()));

        let changes: [fn(&mut Capability); 13] = [
            |c| c.file.volume.0[0] ^= 1,
            |c| c.file.data += 1,
            |c| c.read = !c.read,
            |c| c.write = !c.write,
            |c| c.session.0[15] ^= 128,
            |c| c.session_epoch += 1,
            |c| c.view += 1,
            |c| c.truncate_epoch += 1,
            |c| c.expires.secs += 1,
            |c| c.expires.nanos += 1,
            |c| c.key_id += 1,
            |c| c.mac[0] ^= 1,
            |c| c.mac[31] ^= 128,
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut forged = signed.clone();
            change(&mut forged);
            let error = ring.verify(&forged, NOON).unwrap_err();
            assert_eq!(error.code, Code::BadCapability, "change {number}");
            assert_eq!(error.retry, Retry::Reopen, "change {number}");
        }
    }

    #[test]
    fn it_is_good_until_the_moment_it_expires() {
        let ring = KeyRing::generate(&Env::simulated(1));
        let signed = ring.sign(capability());
        assert_eq!(ring.verify(&signed, NOON), Ok(()));
        let late = Time { nanos: 6, ..NOON };
        let error = ring.verify(&signed, late).unwrap_err();
        assert!(error.context.contains("expired"), "{error}");
    }

    #[test]
    fn old_keys_verify_until_they_leave_the_ring() {
        let env = Env::simulated(1);
        let mut ring = KeyRing::generate(&env);
        let signed = ring.sign(capability());
        for _ in 1..KeyRing::KEYS_MAX {
            ring.rotate(&env);
            assert_eq!(ring.verify(&signed, NOON), Ok(()));
        }
        ring.rotate(&env);
        let error = ring.verify(&signed, NOON).unwrap_err();
        assert!(error.context.contains("unknown key"), "{error}");
        assert_eq!(ring.keys().len(), KeyRing::KEYS_MAX);
    }

    #[test]
    fn an_osd_verifies_with_the_keys_it_was_told() {
        let env = Env::simulated(1);
        let mrc = KeyRing::generate(&env);
        let osd = KeyRing::from_keys(mrc.keys());
        assert_eq!(osd.verify(&mrc.sign(capability()), NOON), Ok(()));

        let stranger = KeyRing::generate(&env);
        assert!(osd.verify(&stranger.sign(capability()), NOON).is_err());
        let nobody = KeyRing::default();
        assert!(osd.verify(&nobody.sign(capability()), NOON).is_err());
        assert!(nobody.verify(&mrc.sign(capability()), NOON).is_err());
    }

    #[test]
    fn keys_are_not_printed() {
        let ring = KeyRing::from_keys([(7, [0xab; 32])]);
        assert_eq!(format!("{ring:?}"), "{7}");
    }
}
