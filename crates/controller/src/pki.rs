// SPDX-License-Identifier: Apache-2.0
//! The region's CA. It signs the controller's own certificate, anew at each start and never on disk, and those of its clients. That a
//! client's certificate is of this CA opens nothing: the controller knows each that counts by its hash.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The CA's certificate in a controller's folder.
pub const CA: &str = "ca.crt";
/// And its key.
pub const CA_KEY: &str = "ca.key";

/// The name in the certificate with which one controller speaks to another. No other client's certificate has a name of this sort.
const PEER: &str = "controller.tunny.invalid";

const DAY: Duration = Duration::from_secs(86_400);
/// Days that a CA is good for.
const CA_DAYS: u32 = 20 * 365;
/// And a server's certificate, which a start renews.
const SERVER_DAYS: u32 = 5 * 365;

/// The CA.
pub struct Pki {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

/// A certificate with its key.
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
    /// Its bytes.
    pub der: Vec<u8>,
}

fn failed(e: &dyn std::fmt::Display) -> String {
    format!("a certificate cannot be made: {e}")
}

fn params(name: &str, days: u32, names: &[String]) -> Result<CertificateParams, String> {
    let mut params = CertificateParams::new(names).map_err(|e| failed(&e))?;
    params.distinguished_name = Default::default();
    params.distinguished_name.push(DnType::CommonName, name);
    let now = SystemTime::now();
    // Clocks may differ.
    params.not_before = (now - DAY).into();
    params.not_after = (now + DAY * days).into();
    Ok(params)
}

fn ca_params(region: &str) -> Result<CertificateParams, String> {
    let mut params = params(&format!("Tunny region {region}"), CA_DAYS, &[])?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// A new CA: certificate and key.
pub fn new_ca(region: &str) -> Result<(String, String), String> {
    let key = KeyPair::generate().map_err(|e| failed(&e))?;
    let certificate = ca_params(region)?.self_signed(&key).map_err(|e| failed(&e))?;
    Ok((certificate.pem(), key.serialize_pem()))
}

impl Pki {
    /// Reads the CA of a region from its folder.
    pub fn load(folder: &Path, region: &str) -> Result<Pki, String> {
        let (at, key) = (folder.join(CA), folder.join(CA_KEY));
        let text = std::fs::read_to_string(&key)
            .map_err(|e| format!("{}: {e}; `tunny controller init` makes a CA", key.display()))?;
        let key = KeyPair::from_pem(&text).map_err(|e| format!("{}: {e}", key.display()))?;
        let certificate = CertificateDer::from_pem_file(&at).map_err(|e| format!("{}: {e}", at.display()))?;
        Ok(Pki { issuer: Issuer::new(ca_params(region)?, key), certificate })
    }

    fn issue(&self, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose) -> Result<Issued, String> {
        let key = KeyPair::generate().map_err(|e| failed(&e))?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer).map_err(|e| failed(&e))?;
        Ok(Issued { certificate: certificate.pem(), key: key.serialize_pem(), der: certificate.der().to_vec() })
    }

    /// A client's certificate.
    pub fn client(&self, name: &str, days: u32) -> Result<Issued, String> {
        self.issue(params(name, days, &[])?, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// How a controller speaks to another one of its region.
    pub fn peer(&self) -> Result<ClientConfig, String> {
        let own = self.issue(params(PEER, SERVER_DAYS, &[PEER.into()])?, ExtendedKeyUsagePurpose::ClientAuth)?;
        let key = PrivatePkcs8KeyDer::from_pem_slice(own.key.as_bytes()).map_err(|e| failed(&e))?;
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).map_err(|e| failed(&e))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| failed(&e))?
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![own.der.into()], PrivateKeyDer::Pkcs8(key))
            .map_err(|e| failed(&e))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }

    /// How the controller answers: TLS 1.3 alone, with a new certificate of its own; a client's certificate, if it has one, must be
    /// of this CA.
    pub fn server(&self, names: &[String]) -> Result<ServerConfig, String> {
        let own = self.issue(params("tunny controller", SERVER_DAYS, names)?, ExtendedKeyUsagePurpose::ServerAuth)?;
        let key = PrivatePkcs8KeyDer::from_pem_slice(own.key.as_bytes()).map_err(|e| failed(&e))?;
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).map_err(|e| failed(&e))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(|e| failed(&e))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| failed(&e))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![own.der.into()], PrivateKeyDer::Pkcs8(key))
            .map_err(|e| format!("{CA} and {CA_KEY} do not fit: {e}"))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// Whether a client's certificate, which is of the region's CA, is that of another controller.
pub fn is_peer(certificate: &CertificateDer<'_>) -> bool {
    let name = ServerName::try_from(PEER);
    let parsed = rustls::server::ParsedCertificate::try_from(certificate);
    matches!((parsed, name), (Ok(parsed), Ok(name)) if rustls::client::verify_server_name(&parsed, &name).is_ok())
}
