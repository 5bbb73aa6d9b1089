// SPDX-License-Identifier: Apache-2.0
//! The file with which a controller starts. `tunny controller init` writes one.

use crate::store::etcd::EtcdConfig;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The name of the file in a controller's folder.
pub const FILE: &str = "controller.yaml";

/// How a controller is run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Config {
    /// Name of the region, which its CA bears.
    pub region: String,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Names and addresses under which it is called: its certificate has them.
    pub names: Vec<String>,
    /// The folder of CA, store and audit log, if it is not that of this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// Where the region's intent is kept, if not in a file of that folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreConfig>,
    /// Where other controllers of the region reach this one, if not by its first name and the port of `listen`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// With whom routes are exchanged by EVPN for the region's nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evpn: Option<EvpnConfig>,
}

/// EVPN for the nodes of a region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct EvpnConfig {
    /// Where the gobgpd beside this controller is asked, by its gRPC interface, which asks nobody who he is: an address that nobody else reaches.
    pub daemon: SocketAddr,
}

/// A store that several controllers share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct StoreConfig {
    /// In etcd.
    pub etcd: EtcdConfig,
}

impl Config {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Config, String> {
        let text = model::read_text(path, 1 << 20).map_err(|e| format!("{}: cannot be read: {e}", path.display()))?;
        let config: Config = serde_saphyr::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        let wrong = |what: String| format!("{}: {what}", path.display());
        model::check_name(&config.region).map_err(|e| wrong(format!("region: {e}")))?;
        if config.names.is_empty() {
            return Err(wrong("names: there is none, so nobody could know this controller".into()));
        }
        if let Some(store) = &config.store {
            store.etcd.check().map_err(wrong)?;
        }
        Ok(config)
    }

    /// Where other controllers reach this one, which listens at an address.
    pub fn url(&self, listens: SocketAddr) -> String {
        let own = || {
            let name = self.names.first().map_or("localhost", String::as_str);
            let v6 = name.contains(':');
            format!("https://{}{name}{}:{}", if v6 { "[" } else { "" }, if v6 { "]" } else { "" }, listens.port())
        };
        self.url.clone().unwrap_or_else(own)
    }

    /// The folder of CA, store and audit log.
    pub fn folder(&self, file: &Path) -> PathBuf {
        let parent = file.parent().unwrap_or(Path::new("."));
        self.folder.as_ref().map_or(parent.to_path_buf(), |folder| parent.join(folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_and_a_wrong_one_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            Config::read(&file)
        };
        let good = "region: north\nlisten: \"127.0.0.1:6474\"\nnames: [localhost]\n";
        let config = read(good).unwrap();
        assert_eq!(config.folder(&file), dir.path());
        assert_eq!(read(&(good.to_string() + "folder: data\n")).unwrap().folder(&file), dir.path().join("data"));
        for (text, why) in [
            (good.replace("north", "-x"), "region"),
            (good.replace("[localhost]", "[]"), "names"),
            (good.replace("6474", "x"), "listen"),
            (good.to_string() + "more: 1\n", "more"),
            (good.to_string() + "store: {etcd: {endpoints: []}}\n", "endpoints"),
            (good.to_string() + "store: {etcd: {endpoints: [127.0.0.1:2379]}}\n", "http"),
            (good.to_string() + "store: {etcd: {endpoints: [\"http://x\"], cert: x}}\n", "key"),
            (good.to_string() + "store: {etcd: {endpoints: [\"https://x\"]}}\n", "store.etcd.ca"),
            (good.to_string() + "store: {etcd: {endpoints: [\"http://x\"], ca: x}}\n", "is not encrypted"),
            (good.to_string() + "store: {other: {}}\n", "store"),
            (good.to_string() + "evpn: {daemon: here}\n", "daemon"),
            ("region: north\n".into(), "listen"),
        ] {
            let said = read(&text).unwrap_err();
            assert!(said.contains(why) && said.contains(FILE), "{said}");
        }
    }
}
