//! The certificate authority of a cell.

use std::time::Duration;

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519, SanType, SerialNumber, date_time_ymd,
};

use super::identity::{Identity, server_name};
use super::subject;
use crate::env::Env;
use crate::error::{Code, Error, Result};
use crate::ids::CellId;
use crate::transport::Peer;

const DAY: u64 = 24 * 60 * 60;
const AUTHORITY_DAYS: u64 = 30 * 365;
const IDENTITY_DAYS: u64 = 10 * 365;

/// Certificate and key of the authority.
pub(super) struct Authority {
    cell: CellId,
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(super) fn create(cell: CellId, env: &Env) -> Result<Self> {
        let key = new_key()?;
        let mut params = params(&format!("xtfs cell {cell}"), AUTHORITY_DAYS, env);
        params.subject_alt_names = vec![uri(&subject::cell_uri(cell))?];
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate_pem = params.self_signed(&key).map_err(failed)?.pem();
        Ok(Self {
            cell,
            certificate_pem,
            issuer: Issuer::new(params, key),
        })
    }

    /// Certificate and key in one text.
    pub(super) fn to_pem(&self) -> String {
        format!(
            "{}{}",
            self.certificate_pem,
            self.issuer.key().serialize_pem()
        )
    }

    pub(super) fn from_pem(cell: CellId, pem: &str) -> Result<Self> {
        let key_at = pem.find("-----BEGIN PRIVATE KEY-----");
        let (certificate_pem, key_pem) = pem
            .split_at_checked(key_at.unwrap_or(pem.len()))
            .unwrap_or((pem, ""));
        let key = KeyPair::from_pem(key_pem).map_err(failed)?;
        let found = super::identity::first_certificate(certificate_pem)
            .and_then(|certificate| subject::cell_of(&certificate))?;
        if found != cell {
            let context = format!("the authority of another cell, {found}");
            return Err(Error::new(Code::Invalid, context));
        }
        let issuer = Issuer::from_ca_cert_pem(certificate_pem, key).map_err(failed)?;
        Ok(Self {
            cell,
            certificate_pem: certificate_pem.to_owned(),
            issuer,
        })
    }

    /// A new key with a certificate for a peer.
    pub(super) fn issue(&self, peer: &Peer, env: &Env) -> Result<Identity> {
        let name = subject::peer_uri(peer)?;
        let key = new_key()?;
        let mut params = params("xtfs", IDENTITY_DAYS, env);
        params.subject_alt_names = vec![uri(&name)?];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if matches!(peer, Peer::Service(_)) {
            params
                .extended_key_usages
                .push(ExtendedKeyUsagePurpose::ServerAuth);
            let dns = ia5(&server_name(self.cell))?;
            params.subject_alt_names.push(SanType::DnsName(dns));
        }
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?;
        Identity::from_pem(format!(
            "{}{}{}",
            certificate.pem(),
            self.certificate_pem,
            key.serialize_pem()
        ))
    }
}

fn new_key() -> Result<KeyPair> {
    KeyPair::generate_for(&PKCS_ED25519).map_err(failed)
}

/// What all certificates have in common. The time before which they are not valid lies far back,
/// so that clocks that differ do no harm.
fn params(common_name: &str, days: u64, env: &Env) -> CertificateParams {
    let mut params = CertificateParams::default();
    let now = Duration::from_secs(u64::try_from(env.now().secs).unwrap_or_default());
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(1970, 1, 1) + now + Duration::from_secs(days * DAY);
    let mut serial: [u8; 16] = env.random();
    serial[0] = serial[0] & 0x3f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params
}

fn uri(text: &str) -> Result<SanType> {
    ia5(text).map(SanType::URI)
}

fn ia5(text: &str) -> Result<Ia5String> {
    Ia5String::try_from(text).map_err(failed)
}

fn failed(error: rcgen::Error) -> Error {
    Error::new(Code::Invalid, format!("certificate authority: {error}"))
}
