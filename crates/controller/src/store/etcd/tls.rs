// SPDX-License-Identifier: Apache-2.0
//! What is wrong with certificates is found before anything is asked. The client of etcd balances over its members and tries each again
//! and again, so that of a certificate that nobody takes it would only say that nobody answers.

use super::link::{failed, EtcdConfig};
use crate::store::StoreError;
use axum::http::Uri;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, Error, RootCertStore};
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A member that does not answer within this time is away, which is no matter of certificates.
const PATIENCE: Duration = Duration::from_secs(2);

/// How a connection of HTTP/2 begins, with settings that change nothing.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Refuses certificates that do not fit, of the files or of a member that is there.
pub(super) fn check(config: &EtcdConfig, folder: &Path) -> Result<(), StoreError> {
    let Some(ca) = &config.ca else { return Ok(()) };
    let client = Arc::new(client(config, &folder.join(ca), folder).map_err(|why| failed("opened", &why))?);
    for endpoint in &config.endpoints {
        let said = |why: String| failed("opened", &format!("etcd at {}: {why}", model::plain(endpoint)));
        let uri: Uri = endpoint.parse().map_err(|e| said(format!("it is no URL: {e}")))?;
        let host = uri.host().ok_or_else(|| said("it names no host".into()))?;
        greet(&client, host, uri.port_u16().unwrap_or(443)).map_err(|e| said(told(&e, config, host)))?;
    }
    Ok(())
}

/// As whom a member is spoken to, and whom one believes.
fn client(config: &EtcdConfig, ca: &Path, folder: &Path) -> Result<ClientConfig, String> {
    let certificates = |path: &Path| -> Result<Vec<CertificateDer<'static>>, String> {
        let at = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        let found = CertificateDer::pem_file_iter(path).map_err(|e| at(&e))?;
        let all: Vec<_> = found.collect::<Result<_, _>>().map_err(|e| at(&e))?;
        if all.is_empty() {
            return Err(at(&"it has no certificate"));
        }
        Ok(all)
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(|e| format!("{}: {e}", ca.display()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|e| e.to_string())?.with_root_certificates(roots);
    let mut client = match (&config.cert, &config.key) {
        (Some(cert), Some(key)) => {
            let (cert, key) = (folder.join(cert), folder.join(key));
            let private = PrivateKeyDer::from_pem_file(&key).map_err(|e| format!("{}: {e}", key.display()))?;
            let wrong = |e: Error| match e {
                Error::InconsistentKeys(_) => {
                    format!("{} is not the key of the certificate {}", key.display(), cert.display())
                }
                e => format!("{}: {e}", cert.display()),
            };
            builder.with_client_auth_cert(certificates(&cert)?, private).map_err(wrong)?
        }
        _ => builder.with_no_client_auth(),
    };
    client.alpn_protocols = vec![b"h2".to_vec()];
    Ok(client)
}

/// Begins a connection, as far as the member's first word: only then it has seen the client's certificate.
fn greet(client: &Arc<ClientConfig>, host: &str, port: u16) -> Result<(), Error> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let addresses = (bare, port).to_socket_addrs().into_iter().flatten();
    let Some(mut tcp) = addresses.into_iter().find_map(|a| TcpStream::connect_timeout(&a, PATIENCE).ok()) else {
        return Ok(());
    };
    let name = ServerName::try_from(bare.to_string()).map_err(|_| Error::General(format!("`{bare}` is no name")))?;
    let mut connection = ClientConnection::new(client.clone(), name)?;
    let _ = tcp.set_read_timeout(Some(PATIENCE)).and_then(|()| tcp.set_write_timeout(Some(PATIENCE)));
    let mut tls = rustls::Stream::new(&mut connection, &mut tcp);
    let spoken = tls.write_all(PREFACE).and_then(|()| tls.read(&mut [0]));
    match spoken.map_err(|e| e.downcast::<Error>()) {
        // What is said is for others to understand; whoever does not answer is away.
        Ok(_) | Err(Err(_)) => Ok(()),
        Err(Ok(wrong)) => Err(wrong),
    }
}

/// What is wrong, and what would help.
fn told(error: &Error, config: &EtcdConfig, host: &str) -> String {
    let shown = |path: &Option<PathBuf>| path.as_ref().map_or(String::new(), |path| path.display().to_string());
    match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            format!("its certificate is not of the CA of store.etcd.ca, {}", shown(&config.ca))
        }
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => format!("its certificate is not for `{host}`: name it in store.etcd.endpoints as its certificate does"),
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "its certificate has ended".into()
        }
        Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::AccessDenied,
        ) => match &config.cert {
            Some(_) => format!(
                "it does not take the certificate of store.etcd.cert, {}: it must be one of etcd's --trusted-ca-file, for a client",
                shown(&config.cert)
            ),
            None => "it asks for a client's certificate: give store.etcd.cert and store.etcd.key".into(),
        },
        Error::InvalidMessage(_) => "it speaks no TLS: is it http:// ?".into(),
        other => format!("TLS: {other}"),
    }
}
