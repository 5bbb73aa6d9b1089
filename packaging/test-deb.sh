#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the package in a throwaway copy of this system (an overlay in namespaces of its own), runs the unit's command line as
# the unit would: its user, capabilities, limits and read-only file system; checks what systemd would filter; upgrades,
# removes and purges. Needs root, overlayfs, and Debian's dpkg, systemd-analyze and strace; no running systemd.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" != inside ]; then
    deb=$(realpath "${1:-$(ls -t target/debian/tunny_*.deb 2>/dev/null | head -1)}")
    [ -f "$deb" ] || { echo "deb-test: there is no package; run make deb first" >&2; exit 1; }
    [ "$(id -u)" = 0 ] || { echo "deb-test: needs root" >&2; exit 1; }
    for tool in dpkg systemd-analyze setpriv strace ip unshare; do
        command -v "$tool" >/dev/null || { echo "deb-test: $tool is missing: apt-get install strace systemd util-linux iproute2" >&2; exit 1; }
    done
    work=$(mktemp -d /var/tmp/tunny-deb-XXXXXX)
    trap 'rmdir "$work"' EXIT
    unshare --mount --net --ipc --uts --propagation private "$PWD/packaging/test-deb.sh" inside "$deb" "$work"
    exit 0
fi

deb=$2 work=$3
say() { echo "deb-test: $*"; }
fail() { echo "deb-test: FAILED: $*" >&2; [ ! -f /tmp/tunny.log ] || tail -20 /tmp/tunny.log >&2; exit 1; }

if [ -z "${TUNNY_DEB_CHROOT:-}" ]; then
    # The copy: everything that is written goes to memory, and ends with the namespace.
    mount -t tmpfs tmpfs "$work"
    mkdir "$work/upper" "$work/work" "$work/root"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$work/root"
    for what in proc sys dev; do mount --rbind "/$what" "$work/root/$what"; done
    mount -t tmpfs tmpfs "$work/root/run"
    mount -t tmpfs tmpfs "$work/root/tmp"
    mount -t bpf bpf "$work/root/sys/fs/bpf"
    cp "$deb" "$work/root/run/tunny.deb"
    cp packaging/test-deb.sh "$work/root/run/test-deb.sh"
    status=0
    TUNNY_DEB_CHROOT=1 chroot "$work/root" /bin/bash -c 'mkdir -p /run/here/packaging && cp /run/test-deb.sh /run/here/packaging/ &&
        exec /run/here/packaging/test-deb.sh inside /run/tunny.deb /' || status=$?
    umount -l "$work"
    exit $status
fi

# From here on inside the copy. Whatever fails, no node stays behind.
trap 'kill -9 $(jobs -p) 2>/dev/null || true' EXIT
ip link set lo up
ip link add up0 type veth peer name far0
ip link set up0 up
ip link set far0 up
say "installing"
dpkg -i "$deb" >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log >&2; fail "dpkg -i"; }
id tunny >/dev/null || fail "there is no user tunny"
[ "$(stat -c %U:%G:%a /etc/tunny)" = root:tunny:750 ] || fail "/etc/tunny is $(stat -c %U:%G:%a /etc/tunny)"
[ "$(stat -c %a /etc/tunny/gateway.yaml)" = 640 ] || fail "the mode of gateway.yaml"
tunny version
for page in operations.md cli.md configuration.md reasons.md copyright; do
    [ -s "/usr/share/doc/tunny/$page" ] || fail "/usr/share/doc/tunny/$page is missing"
done

unit=/lib/systemd/system/tunny.service
say "the unit"
# Units that this system lacks are not ours to complain about.
systemd-analyze verify --recursive-errors=no "$unit" 2>&1 | grep -F tunny.service >/tmp/verify && { cat /tmp/verify >&2; fail "systemd-analyze verify"; }
systemd-analyze security --offline=yes --threshold=30 "$unit" | tail -1
value() { sed -n "s/^$1=//p" "$unit"; }

cat >/etc/tunny/gateway.yaml <<YAML
apiVersion: tunny/v1
kind: Gateway
metadata: {name: gateway}
spec: {vtep: {ipv4: 192.0.2.1}, uplinks: [up0], engine: native}
YAML

# What the unit says, done by hand.
value ExecStartPre | sed 's/^+//' | while read -r command; do $command; done
mkdir -p /var/lib/tunny /run/tunny /var/log/tunny
chown tunny:tunny /var/lib/tunny /run/tunny /var/log/tunny
chmod "$(value StateDirectoryMode)" /var/lib/tunny
capabilities=$(value CapabilityBoundingSet | tr 'A-Z ' 'a-z,' | sed 's/cap_/+/g')
if ! (ulimit -l unlimited) 2>/dev/null; then
    say "the limit of locked memory cannot be raised here; CAP_IPC_LOCK stands for LimitMEMLOCK=infinity"
    capabilities=$capabilities,+ipc_lock
fi
start() {
    : >/tmp/tunny.log
    # ProtectSystem=strict, with the folders that the unit makes writable.
    unshare --mount --propagation private /bin/bash -euc '
        for folder in /var/lib/tunny /var/log/tunny /run/tunny /sys/fs/bpf /tmp; do mount --bind "$folder" "$folder"; done
        mount -o remount,bind,ro /
        ulimit -l unlimited 2>/dev/null || true
        ulimit -n 65536 2>/dev/null || true
        umask "$1"
        shift
        exec "$@"' sh "$(value UMask)" "${trace[@]}" setpriv --reuid tunny --regid tunny --init-groups --no-new-privs \
        --bounding-set "-all,$capabilities" --inh-caps "-all,$capabilities" --ambient-caps "-all,$capabilities" \
        $(value ExecStart) >/tmp/tunny.log 2>&1 &
    for _ in $(seq 300); do
        grep -q 'listening on' /tmp/tunny.log && return
        kill -0 $! 2>/dev/null || fail "the node ended at once"
        sleep 0.1
    done
    fail "the node does not listen"
}
stop() {
    kill -TERM "$(tunny get status -o json | sed -n 's/.*"pid": \([0-9]*\).*/\1/p')"
    wait $! || true
}

say "the unit's command line, as its user, with its rights"
trace=()
start
tunny get status
tunny get status -o json | tr -d ' \n' | grep -q '"mode":"native"' || fail "up0 is not served in native mode"
tunny get status | grep WARNING && fail "the node lacks something"
tunny get counters | grep -q 'balanced.*: yes' || fail "not balanced"
[ "$(stat -c %U:%a /run/tunny/default.sock)" = tunny:660 ] || fail "the socket is $(stat -c %U:%a /run/tunny/default.sock)"
say "stop and start: taken over"
stop
ls /sys/fs/bpf/tunny/default | grep -q '^link-' || fail "the fast path did not stay"

# What systemd would filter is compared with what the node does.
if strace -o /dev/null true 2>/dev/null; then
    trace=(strace -f -qq -o /tmp/strace)
fi
start
tunny get status -o json | tr -d ' \n' | grep -q '"took_over":true' || fail "the tables were not taken over"
tunny apply --yes - </etc/tunny/gateway.yaml >/dev/null
stop
if [ ${#trace[@]} != 0 ]; then
    # From the first call of the node itself.
    sed -n '/execve("\/usr\/bin\/tunny"/,$p' /tmp/strace >/tmp/calls
    [ -s /tmp/calls ] || fail "strace saw nothing"
    for group in $(value SystemCallFilter); do
        case $group in
        @*) systemd-analyze syscall-filter "$group" ;;
        *) echo "    $group" ;;
        esac
    done | sed -n 's/^    \([@a-z0-9_-]*\)$/\1/p' >/tmp/allowed
    while grep -q '^@' /tmp/allowed; do
        group=$(grep -m1 '^@' /tmp/allowed)
        sed -i "/^$group\$/d" /tmp/allowed
        systemd-analyze syscall-filter "$group" | sed -n 's/^    \([@a-z0-9_-]*\)$/\1/p' >>/tmp/allowed
    done
    sed -nE 's/^[0-9]+ +([a-z0-9_]+)\(.*/\1/p' /tmp/calls | sort -u >/tmp/used
    refused=$(grep -vxFf /tmp/allowed /tmp/used | grep -vx execve || true)
    [ -z "$refused" ] || fail "SystemCallFilter would refuse: $refused"
    families=$(sed -nE 's/.*socket\((AF_[A-Z0-9]+).*/\1/p' /tmp/calls | sort -u)
    for family in $families; do
        value RestrictAddressFamilies | grep -qw "$family" || fail "RestrictAddressFamilies would refuse $family"
    done
    grep -E '(mmap|mprotect)\(.*PROT_WRITE\|PROT_EXEC' /tmp/calls && fail "MemoryDenyWriteExecute would refuse that"
    say "$(wc -l </tmp/used) system calls and $(echo $families | wc -w) address families, all of them allowed by the unit"
else
    say "SKIPPED: strace is not permitted here, so the system call filter is not compared"
fi

say "upgrade while the node is stopped, removal, purge"
dpkg -i "$deb" >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log >&2; fail "dpkg -i over itself"; }
grep -q 'engine: native' /etc/tunny/gateway.yaml || fail "an upgrade lost the configuration"
ls /sys/fs/bpf/tunny/default | grep -q '^link-' || fail "an upgrade took the fast path away"
dpkg -r tunny >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log >&2; fail "dpkg -r"; }
[ ! -e /sys/fs/bpf/tunny/default ] || fail "removal left the fast path on the ports"
[ -d /var/lib/tunny ] || fail "removal took the state away"
dpkg -P tunny >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log >&2; fail "dpkg -P"; }
if [ -e /var/lib/tunny ] || [ -e /etc/tunny ]; then fail "purge left something"; fi
say "all is well"
