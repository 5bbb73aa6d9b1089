#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds target/debian/tunny_VERSION_ARCH.deb from target/release/tunny and the tunny-lab beside it, and tunny-controller_VERSION_all.deb, which
# runs the same tunny as the controller of a region.
# TUNNY_BINARY names another tunny; TUNNY_DEB_COMPRESS=1 packs faster and larger (CI).
set -euo pipefail
cd "$(dirname "$0")/.."
binary=${TUNNY_BINARY:-target/release/tunny}
for program in "$binary" "$binary-lab"; do
    [ -x "$program" ] || { echo "build-deb: $program is missing; run make build first" >&2; exit 1; }
done
command -v dpkg-deb >/dev/null || { echo "build-deb: dpkg-deb is missing; this needs Debian or the package dpkg" >&2; exit 1; }
# Whoever builds a package for others names themselves, as for dch.
maintainer="${DEBFULLNAME:-The Tunny project} <${DEBEMAIL:-maintainers@tunny.example}>"
# Reproducible: the date of everything is that of the commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
# What stands under "Unreleased" comes after the version that Cargo.toml names.
! awk '/^## \[/ {on = /Unreleased/} on && /^- / {found = 1} END {exit !found}' CHANGELOG.md || version=$version+next
version=$version-1
arch=$(dpkg --print-architecture)
root=target/debian/root doc=target/debian/root/usr/share/doc/tunny
rm -rf "$root"

for unit in tunny.service tunny@.service tunny-agent.service tunny-host-agent.service tunny-watchdog.service; do
    install -Dm644 "packaging/$unit" "$root/lib/systemd/system/$unit"
done
install -Dm644 packaging/tunny.sysusers "$root/usr/lib/sysusers.d/tunny.conf"
install -Dm640 packaging/gateway.yaml "$root/etc/tunny/gateway.yaml"

# Manual pages and completion come from the definitions of the commands.
mkdir -p "$root/usr/share/man/man1" "$root/usr/share/bash-completion/completions" "$root/usr/share/zsh/vendor-completions" \
    "$root/usr/share/fish/vendor_completions.d"
for program in "$binary" "$binary-lab"; do
    name=$(basename "$program")
    install -Dm755 "$program" "$root/usr/bin/$name"
    strip --strip-unneeded --remove-section=.comment --remove-section=.note "$root/usr/bin/$name"
    "$program" cli-reference --man "$root/usr/share/man/man1"
    "$program" completion bash >"$root/usr/share/bash-completion/completions/$name"
    "$program" completion zsh >"$root/usr/share/zsh/vendor-completions/_$name"
    "$program" completion fish >"$root/usr/share/fish/vendor_completions.d/$name.fish"
done
gzip -9n "$root"/usr/share/man/man1/*.1

for page in README.md docs/tour.md docs/operations.md docs/reference/*.md; do
    install -Dm644 "$page" "$doc/$(basename "$page")"
done
install -Dm644 packaging/copyright "$doc/copyright"
for file in examples/*.yaml examples/frr.conf packaging/host-agent.env packaging/grafana/*.json packaging/prometheus/*.rules.yaml; do
    install -Dm644 "$file" "$doc/examples/$(basename "$file")"
done
install -Dm644 CHANGELOG.md "$doc/changelog"
packaging/debian-changelog.sh "$version" "$maintainer" >"$doc/changelog.Debian"
gzip -9n "$doc/changelog" "$doc/changelog.Debian"

for script in postinst prerm postrm; do
    install -Dm755 "packaging/$script" "$root/DEBIAN/$script"
done
echo /etc/tunny/gateway.yaml >"$root/DEBIAN/conffiles"
# The packages that the libraries in use belong to. dpkg knows files under /lib by that name, whatever /lib is a link to.
depends=$(ldd "$binary" "$binary-lab" | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' | while read -r library; do
    for path in "$library" "$(readlink -f "$library")" "/usr$library" "${library#/usr}"; do
        dpkg -S "$path" 2>/dev/null && break
    done
done | cut -d: -f1 | sort -u | paste -sd, | sed 's/,/, /g')
cat >"$root/DEBIAN/control" <<CONTROL
Package: tunny
Version: $version
Architecture: $arch
Maintainer: $maintainer
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Section: net
Priority: optional
Depends: ${depends:-libc6}
Recommends: linux-image-$arch (>= 6.1), ethtool, iproute2
Description: Multi-tenant VXLAN gateway with an XDP fast path
 Routes between virtual machines of many tenants over VXLAN, and between them
 and the Internet, on an XDP fast path with a complete software path behind it;
 puts security groups in front of virtual machines and bare-metal servers.
 The program tunny-lab beside it builds a region on one machine, measures, and
 plans tables for a switch chip; the gateway does not need it.
 Upgrading this package does not interrupt what the fast path forwards.
CONTROL
# pack FOLDER NAME_VERSION_ARCH
pack() {
    (cd "$1" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum) >"$1/DEBIAN/md5sums"
    rm -f "target/debian/${2%%_*}"_*.deb
    dpkg-deb --root-owner-group ${TUNNY_DEB_COMPRESS:+-Zgzip -z"$TUNNY_DEB_COMPRESS"} --build "$1" "target/debian/$2.deb" >/dev/null
    echo "target/debian/$2.deb"
}
pack "$root" "tunny_${version}_$arch"

# The controller's package has no program: a unit, a user and a folder for what `tunny controller init` makes.
own=target/debian/controller-root doc=target/debian/controller-root/usr/share/doc/tunny-controller
rm -rf "$own"
install -Dm644 packaging/tunny-controller.service "$own/lib/systemd/system/tunny-controller.service"
install -Dm644 packaging/controller/sysusers "$own/usr/lib/sysusers.d/tunny-controller.conf"
install -Dm644 packaging/copyright "$doc/copyright"
install -Dm644 examples/controller.yaml "$doc/examples/controller.yaml"
packaging/debian-changelog.sh "$version" "$maintainer" | sed 's/^tunny (/tunny-controller (/' >"$doc/changelog.Debian"
gzip -9n "$doc/changelog.Debian"
for script in postinst prerm postrm; do
    install -Dm755 "packaging/controller/$script" "$own/DEBIAN/$script"
done
cat >"$own/DEBIAN/control" <<CONTROL
Package: tunny-controller
Version: $version
Architecture: all
Maintainer: $maintainer
Installed-Size: $(du -sk --exclude=DEBIAN "$own" | cut -f1)
Section: net
Priority: optional
Depends: tunny (= $version)
Description: Controller of a region of Tunny gateways
 Keeps in one place what a region of several clusters should be, tells each
 gateway its part and verifies that it is in force; places tenants on clusters
 and moves them without loss; serves a dashboard. Runs the program of the
 package tunny. Without it gateways forward, and start, by what they have.
CONTROL
pack "$own" "tunny-controller_${version}_all"
