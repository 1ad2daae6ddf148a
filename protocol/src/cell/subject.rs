//! Who a certificate is for, as the URI in it says.

use std::fmt::Write;

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::error::{Code, Error, Result};
use crate::ids::CellId;
use crate::transport::Peer;

/// Most groups that fit a user's certificate.
const GROUPS_MAX: usize = 256;

/// The URI of a peer.
pub(super) fn peer_uri(peer: &Peer) -> Result<String> {
    match peer {
        Peer::Service(id) => Ok(format!("xtfs:service:{id}")),
        Peer::Host(name) if is_host_name(name) => Ok(format!("xtfs:host:{name}")),
        Peer::Host(name) => {
            let context = format!("host name {name:?}: give 1 to 64 of A-Z a-z 0-9 . _ -");
            Err(Error::new(Code::Invalid, context))
        }
        Peer::User { gids, .. } if gids.len() > GROUPS_MAX => {
            let context = format!("{} groups: at most {GROUPS_MAX}", gids.len());
            Err(Error::new(Code::Invalid, context))
        }
        Peer::User { uid, gids } => {
            let mut uri = format!("xtfs:user:{uid}:");
            for (number, gid) in gids.iter().enumerate() {
                let comma = if number == 0 { "" } else { "," };
                let _ = write!(uri, "{comma}{gid}");
            }
            Ok(uri)
        }
    }
}

fn parse_peer(uri: &str) -> Option<Peer> {
    let (kind, rest) = uri.strip_prefix("xtfs:")?.split_once(':')?;
    match kind {
        "service" => Some(Peer::Service(rest.parse().ok()?)),
        "host" => is_host_name(rest).then(|| Peer::Host(rest.to_owned())),
        "user" => {
            let (uid, gids) = rest.split_once(':')?;
            let gids = gids.split(',').filter(|gid| !gid.is_empty());
            Some(Peer::User {
                uid: uid.parse().ok()?,
                gids: gids.map(|gid| gid.parse().ok()).collect::<Option<_>>()?,
            })
        }
        _ => None,
    }
}

fn is_host_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// The URI of a cell's authority.
pub(super) fn cell_uri(cell: CellId) -> String {
    format!("xtfs:cell:{cell}")
}

/// Who holds this certificate. It must have been verified before.
pub(crate) fn peer_of(certificate: &[u8]) -> Result<Peer> {
    the_uri(certificate, parse_peer)
}

/// Which cell this authority's certificate is of.
pub(super) fn cell_of(certificate: &[u8]) -> Result<CellId> {
    the_uri(certificate, |uri| {
        uri.strip_prefix("xtfs:cell:")?.parse().ok()
    })
}

/// The one URI of a certificate, understood.
fn the_uri<T>(certificate: &[u8], parse: impl Fn(&str) -> Option<T>) -> Result<T> {
    let invalid = |why: String| Error::new(Code::Invalid, format!("certificate: {why}"));
    let (_, certificate) =
        X509Certificate::from_der(certificate).map_err(|error| invalid(error.to_string()))?;
    let names = certificate
        .subject_alternative_name()
        .map_err(|error| invalid(error.to_string()))?;
    let mut uris = names
        .iter()
        .flat_map(|extension| &extension.value.general_names)
        .filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        });
    match (uris.next(), uris.next()) {
        (Some(uri), None) => parse(uri).ok_or_else(|| invalid(format!("unknown name {uri:?}"))),
        _ => Err(invalid("does not name exactly one holder".to_owned())),
    }
}
