// SPDX-License-Identifier: Apache-2.0
//! The way to a controller: TLS 1.3, with the region's own CA, and a certificate or a token of whoever calls.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::TlsConnector;

/// How long a connection may take to come about.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where a controller is, and as whom it is spoken to.
#[derive(Clone, Debug, Default)]
pub struct Address {
    /// `https://HOST[:PORT]`.
    pub url: String,
    /// The region's CA.
    pub ca: PathBuf,
    /// Certificate and key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// A file with a token.
    pub token: Option<PathBuf>,
}

/// A controller that can be called.
#[derive(Clone)]
pub struct Remote {
    url: String,
    host: String,
    port: u16,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
    token: Option<String>,
}

impl std::fmt::Debug for Remote {
    // The token is nobody's to read.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Remote({})", self.url)
    }
}

/// The host and port of a URL.
fn parts(url: &str) -> Result<(String, u16), String> {
    let wrong = || format!("`{}` is no address of a controller: write https://HOST or https://HOST:PORT", plain(url));
    let rest = url.strip_prefix("https://").ok_or_else(wrong)?.trim_end_matches('/');
    let (host, port) = match rest.strip_prefix('[') {
        Some(v6) => v6.split_once(']').ok_or_else(wrong)?,
        None => rest.split_at(rest.find(':').unwrap_or(rest.len())),
    };
    let port = match port {
        "" => crate::distribution::PORT,
        port => port.strip_prefix(':').and_then(|p| p.parse().ok()).filter(|p| *p > 0).ok_or_else(wrong)?,
    };
    if host.is_empty() || host.contains('/') {
        return Err(wrong());
    }
    Ok((host.into(), port))
}

fn plain(text: &str) -> std::borrow::Cow<'_, str> {
    model::plain(text)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(list) if !list.is_empty() => Ok(list),
        Ok(_) => Err(format!("{} holds no certificate", path.display())),
        Err(e) => Err(format!("{} cannot be read as certificates: {e}", path.display())),
    }
}

impl Remote {
    /// Reads the files of an address. Connects with the first request.
    pub fn new(address: &Address) -> Result<Remote, String> {
        let (host, port) = parts(&address.url)?;
        let name =
            ServerName::try_from(host.clone()).map_err(|_| format!("`{}` is no name of a host", plain(&host)))?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&address.ca)? {
            roots.add(certificate).map_err(|e| format!("{}: {e}", address.ca.display()))?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| e.to_string())?
            .with_root_certificates(roots);
        let config = match &address.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate)?;
                let secret = PrivateKeyDer::from_pem_file(key)
                    .map_err(|e| format!("{} cannot be read as a private key: {e}", key.display()))?;
                let why = |e| format!("{} and {} do not fit: {e}", certificate.display(), key.display());
                builder.with_client_auth_cert(chain, secret).map_err(why)?
            }
        };
        let token = match &address.token {
            None => None,
            Some(path) => {
                let text =
                    model::read_text(path, 4096).map_err(|e| format!("{} cannot be read: {e}", path.display()))?;
                let token = text.trim();
                let fits = !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
                Some(fits.then(|| token.to_string()).ok_or_else(|| format!("{} holds no token", path.display()))?)
            }
        };
        Ok(Remote { url: address.url.trim_end_matches('/').into(), host, port, name, config: Arc::new(config), token })
    }

    /// As it was given.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What a request carries to say who asks, if its certificate does not.
    pub(crate) fn authorization(&self) -> Option<String> {
        self.token.as_ref().map(|token| format!("Bearer {token}"))
    }

    /// Connects, for a protocol of HTTP (`h2`, `http/1.1`).
    pub async fn connect(&self, protocol: &str) -> Result<TlsStream<TcpStream>, String> {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let work = async {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
            stream.set_nodelay(true)?;
            TlsConnector::from(Arc::new(config)).connect(self.name.clone(), stream).await
        };
        match tokio::time::timeout(PATIENCE, work).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(e)) => Err(e.to_string()),
            Err(_) => Err(format!("it does not answer within {} s", PATIENCE.as_secs())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_controllers_are_read() {
        for (url, host, port) in [
            ("https://a.example", "a.example", 6474),
            ("https://a.example:8443/", "a.example", 8443),
            ("https://[::1]", "::1", 6474),
            ("https://[::1]:5", "::1", 5),
            ("https://192.0.2.1:5", "192.0.2.1", 5),
        ] {
            assert_eq!(parts(url), Ok((host.into(), port)), "{url}");
        }
        for url in
            ["http://a", "a", "https://", "https://a:0", "https://a:x", "https://a/b", "https://[::1", "https://[::1]5"]
        {
            assert!(parts(url).is_err(), "{url}");
        }
    }
}
