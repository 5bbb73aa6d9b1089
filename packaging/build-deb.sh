#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds target/debian/tunny_VERSION_ARCH.deb from target/release/tunny.
set -euo pipefail
cd "$(dirname "$0")/.."
binary=${TUNNY_BINARY:-target/release/tunny}
[ -x "$binary" ] || { echo "build-deb: $binary is missing; run make build first" >&2; exit 1; }
command -v dpkg-deb >/dev/null || { echo "build-deb: dpkg-deb is missing; this needs Debian or the package dpkg" >&2; exit 1; }
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
arch=$(dpkg --print-architecture)
root=target/debian/root
rm -rf "$root"
install -Dm755 "$binary" "$root/usr/bin/tunny"
strip --strip-debug "$root/usr/bin/tunny" 2>/dev/null || true
install -Dm644 packaging/tunny.service "$root/lib/systemd/system/tunny.service"
install -Dm644 packaging/tunny.sysusers "$root/usr/lib/sysusers.d/tunny.conf"
install -Dm640 packaging/gateway.yaml "$root/etc/tunny/gateway.yaml"
for page in README.md docs/operations.md docs/reference/*.md; do
    [ ! -f "$page" ] || install -Dm644 "$page" "$root/usr/share/doc/tunny/$(basename "$page")"
done
install -Dm644 LICENSE "$root/usr/share/doc/tunny/copyright"
for script in postinst prerm postrm; do
    install -Dm755 "packaging/$script" "$root/DEBIAN/$script"
done
echo /etc/tunny/gateway.yaml >"$root/DEBIAN/conffiles"
# The packages that the libraries in use belong to. dpkg knows files under /lib by that name, whatever /lib is a link to.
depends=$(ldd "$binary" | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' | while read -r library; do
    for path in "$library" "$(readlink -f "$library")" "/usr$library" "${library#/usr}"; do
        dpkg -S "$path" 2>/dev/null && break
    done
done | cut -d: -f1 | sort -u | paste -sd, | sed 's/,/, /g')
cat >"$root/DEBIAN/control" <<CONTROL
Package: tunny
Version: $version
Architecture: $arch
Maintainer: The Tunny project <tunny@localhost>
Section: net
Priority: optional
Depends: ${depends:-libc6}
Recommends: linux-image-$arch (>= 6.1), ethtool, iproute2
Description: Multi-tenant VXLAN gateway with an XDP fast path
 Routes between virtual machines of many tenants over VXLAN, on an XDP fast
 path with a complete software path behind it. Upgrading this package does
 not interrupt what the fast path forwards.
CONTROL
output=target/debian/tunny_${version}_${arch}.deb
dpkg-deb --root-owner-group --build "$root" "$output" >/dev/null
echo "$output"
