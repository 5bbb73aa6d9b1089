#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what Tunny needs to build, test and demonstrate on Debian 12, and says what it cannot install itself.
# `deps.sh` for build, test and demo; `deps.sh peers` adds the peers of `make peers`, `deps.sh deb` what `make deb-test`
# needs. With TUNNY_CI=1 it adds all that a test needs which would be skipped without it.
set -eu

# bgpd and gobgpd are for the demo and come with services that are not needed: where systemd runs, `systemctl disable --now frr gobgpd`.
# package:file that proves it is there (a file, so that no package query is needed when all is well)
need="
gcc:/usr/bin/gcc
make:/usr/bin/make
protobuf-compiler:/usr/bin/protoc
libprotobuf-dev:/usr/include/google/protobuf/descriptor.proto
pkg-config:/usr/bin/pkg-config
clang:/usr/bin/clang
llvm:/usr/bin/llvm-strip
libelf-dev:/usr/include/libelf.h
zlib1g-dev:/usr/include/zlib.h
linux-libc-dev:/usr/include/linux/bpf.h
libbpf-dev:/usr/include/bpf/bpf_helpers.h
iproute2:/usr/sbin/ip
ethtool:/usr/sbin/ethtool
iperf3:/usr/bin/iperf3
iputils-ping:/usr/bin/ping
busybox:/usr/bin/busybox
isc-dhcp-client:/usr/sbin/dhclient
util-linux:/usr/bin/nsenter
procps:/usr/bin/pgrep
nginx-light:/usr/sbin/nginx
curl:/usr/bin/curl
frr:/usr/lib/frr/bgpd
gobgpd:/usr/bin/gobgpd
"
if [ "${1:-}" = peers ]; then
    need="$need
nftables:/usr/sbin/nft
openvswitch-switch:/usr/sbin/ovs-vswitchd
openvswitch-switch-dpdk:/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk
librte-net-pcap23:/usr/lib/x86_64-linux-gnu/librte_net_pcap.so.23
librte-net-null23:/usr/lib/x86_64-linux-gnu/librte_net_null.so.23
librte-mempool-ring23:/usr/lib/x86_64-linux-gnu/librte_mempool_ring.so.23
librte-bus-vdev23:/usr/lib/x86_64-linux-gnu/librte_bus_vdev.so.23
"
fi

if [ "${1:-}" = deb ] || [ "${TUNNY_CI:-0}" != 0 ]; then
    need="$need
strace:/usr/bin/strace
systemd:/usr/bin/systemd-analyze
lintian:/usr/bin/lintian
"
fi

# promtool and etcd come with servers, whose services are not needed: where systemd runs, `systemctl disable --now prometheus etcd`.
# The test of the dashboard drives Chromium; other distributions of nodejs bring npm with them.
if [ "${TUNNY_CI:-0}" != 0 ]; then
    need="$need
prometheus:/usr/bin/promtool
etcd-server:/usr/bin/etcd
chromium:/usr/bin/chromium
nodejs:/usr/bin/node
npm:/usr/bin/npm
wireguard-go:/usr/bin/wireguard-go
wireguard-tools:/usr/bin/wg
python3-venv:/usr/share/doc/python3-venv
"
fi

missing=""
for entry in $need; do
    [ -e "${entry#*:}" ] || missing="$missing ${entry%%:*}"
done
if [ -n "$missing" ]; then
    if [ "$(id -u)" != 0 ]; then
        echo "Missing Debian packages:$missing" >&2
        echo "Run as root: apt-get install$missing" >&2
        exit 1
    fi
    echo "Installing Debian packages:$missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    # shellcheck disable=SC2086
    apt-get install -y -q --no-install-recommends $missing
fi

target=${CARGO_TARGET_DIR:-$(dirname "$0")/../target}
browser=$target/browser
if [ "${TUNNY_CI:-0}" != 0 ] && [ ! -e "$browser/node_modules/playwright-core/package.json" ]; then
    # The version and hash of its one package stand in package-lock.json; it brings no browser.
    mkdir -p "$browser"
    cp "$(dirname "$0")"/browser/package*.json "$browser"
    npm ci --prefix "$browser" --ignore-scripts --no-audit --no-fund
fi
if [ "${TUNNY_CI:-0}" != 0 ] && [ ! -e "$target/fuzz-api/bin/schemathesis" ]; then
    python3 -m venv "$target/fuzz-api"
    "$target/fuzz-api/bin/pip" install -q --disable-pip-version-check --require-hashes -r "$(dirname "$0")/fuzz-api/requirements.txt"
fi

least=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")
advice="Install it with rustup (Debian 12's own rustc is too old):
    apt-get install -y curl && curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal
    . \"\$HOME/.cargo/env\"
then run make again."
if ! command -v cargo >/dev/null 2>&1; then
    echo "Rust is missing: Tunny needs Rust $least or newer. $advice" >&2
    exit 1
fi
have=$(rustc --version | cut -d' ' -f2 | cut -d- -f1)
if [ "$(printf '%s\n%s\n' "$least" "$have" | sort -V | head -n 1)" != "$least" ]; then
    echo "Rust $have is too old: Tunny needs $least or newer. $advice" >&2
    exit 1
fi
