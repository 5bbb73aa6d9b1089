#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the package in a throwaway copy of this system (an overlay in namespaces of its own), runs the unit's command line as
# the unit would: its user, capabilities, limits and read-only file system; checks what systemd would filter; upgrades while
# two hosts ping each other through the node, which must lose nothing; removes and purges; makes a region with the controller's package, upgrades
# it, and lets the host agent follow it. Needs root, overlayfs, and
# Debian's dpkg, systemd-analyze, strace and lintian; no running systemd: a stub of systemctl does what its services would.
# test-deb.sh [NEW.deb [OLD.deb]]: without OLD the upgrade is from the same files under a lower version. The controller's package lies beside NEW.deb.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { echo "deb-test: $*"; }
if [ "${1:-}" != inside ] && [ "${1:-}" != systemctl ]; then
    [ "$(id -u)" = 0 ] || { echo "deb-test: needs root" >&2; exit 1; }
    for tool in dpkg systemd-analyze setpriv strace lintian ping ethtool ip unshare; do
        command -v "$tool" >/dev/null || { echo "deb-test: $tool is missing: scripts/deps.sh deb" >&2; exit 1; }
    done
    deb=$(realpath "${1:-$(ls -t target/debian/tunny_*.deb 2>/dev/null | head -1)}")
    [ -f "$deb" ] || { echo "deb-test: there is no package; run make deb first" >&2; exit 1; }
    controller=$(ls -t "$(dirname "$deb")"/tunny-controller_*.deb 2>/dev/null | head -1)
    [ -f "$controller" ] || { echo "deb-test: the controller's package is not beside $deb; run make deb first" >&2; exit 1; }
    say "lintian"
    lintian --allow-root --fail-on error --tag-display-limit 0 "$deb" "$controller"
    work=$(mktemp -d /var/tmp/tunny-deb-XXXXXX)
    trap 'rm -rf "$work"' EXIT
    mkdir "$work/copy" "$work/debs"
    cp "$deb" "$work/debs/tunny.deb"
    cp "$controller" "$work/debs/controller.deb"
    # older PACKAGE: the same files under a lower version, as old-PACKAGE.
    older() {
        dpkg-deb -R "$work/debs/$1.deb" "$work/$1"
        sed -i 's/^Version: .*/Version: 0.0.1-1/; s/tunny (= .*)/tunny (= 0.0.1-1)/' "$work/$1/DEBIAN/control"
        dpkg-deb --root-owner-group -Zgzip -z1 -b "$work/$1" "$work/debs/old-$1.deb" >/dev/null
    }
    older controller
    if [ -n "${2:-}" ]; then
        cp "$2" "$work/debs/old-tunny.deb"
        version=$(dpkg-deb -f "$2" Version)
        sed -i "s/^Version: .*/Version: $version/; s/tunny (= .*)/tunny (= $version)/" "$work/controller/DEBIAN/control"
        dpkg-deb --root-owner-group -Zgzip -z1 -b "$work/controller" "$work/debs/old-controller.deb" >/dev/null
    else
        older tunny
    fi
    unshare --mount --net --ipc --uts --propagation private "$PWD/packaging/test-deb.sh" inside "$work/debs" "$work/copy"
    exit 0
fi

unit=/lib/systemd/system/tunny.service
fail() { echo "deb-test: FAILED: $*" >&2; [ ! -f /tmp/tunny.log ] || tail -20 /tmp/tunny.log >&2; exit 1; }

value() { sed -n "s/^$1=//p" "${2:-$unit}"; }
# Runs a command as a unit would: user, rights, limits and read-only file system, until it says what it must. as_unit UNIT LOG SAYS COMMAND...
as_unit() {
    local of=$1 log=$2 says=$3 capabilities user
    shift 3
    user=$(value User "$of")
    capabilities=$(value CapabilityBoundingSet "$of" | tr 'A-Z ' 'a-z,' | sed 's/cap_/+/g')
    if ! (ulimit -l unlimited) 2>/dev/null && [ -n "$capabilities" ]; then
        # The limit of locked memory cannot be raised here; CAP_IPC_LOCK stands for LimitMEMLOCK=infinity.
        capabilities=$capabilities,+ipc_lock
    fi
    capabilities=-all${capabilities:+,$capabilities}
    : >"$log"
    # ProtectSystem=strict, with the folders that the unit makes writable.
    unshare --mount --propagation private /bin/bash -euc '
        for folder in /var/lib/tunny /var/lib/tunny-controller /var/log/tunny /run/tunny /sys/fs/bpf /tmp; do
            [ ! -d "$folder" ] || mount --bind "$folder" "$folder"
        done
        mount -o remount,bind,ro /
        ulimit -l unlimited 2>/dev/null || true
        ulimit -n 65536 2>/dev/null || true
        umask "$1"
        shift
        exec "$@"' sh "$(value UMask "$of")" "${trace[@]}" setpriv --reuid "$user" --regid "$user" --init-groups --no-new-privs \
        --bounding-set "$capabilities" --inh-caps "$capabilities" --ambient-caps "$capabilities" \
        "$@" >"$log" 2>&1 </dev/null &
    for _ in $(seq 300); do
        grep -q "$says" "$log" && return
        kill -0 $! 2>/dev/null || { cat "$log" >&2; fail "$1 ended at once"; }
        sleep 0.1
    done
    cat "$log" >&2
    fail "$1 does not say: $says"
}
running() { tunny get status -o json 2>/dev/null | sed -n 's/.*"pid": \([0-9]*\).*/\1/p'; }
start() { as_unit "$unit" /tmp/tunny.log 'listening on' $(value ExecStart); }
end() {
    kill -TERM "$1"
    for _ in $(seq 100); do
        kill -0 "$1" 2>/dev/null || return 0
        sleep 0.1
    done
    fail "$1 does not end"
}
stop() { end "$(running)"; }
# The controller, and who asks it.
of_controller=/lib/systemd/system/tunny-controller.service
region=/var/lib/tunny-controller
start_controller() { as_unit "$of_controller" /tmp/controller.log 'listening on' $(value ExecStart "$of_controller"); }
ask() { tunny --server https://localhost:6474 --ca $region/ca.crt --cert $region/operator.crt --key $region/operator.key "$@"; }
leading() { ask get status -o 'jsonpath={.pid}' 2>/dev/null; }
trace=()

# What the package's scripts ask of systemd, done for the one service that may run here.
if [ "$1" = systemctl ]; then
    echo "$*" >>/tmp/systemctl
    case "$2 ${3:-}" in
    'try-restart tunny.service') [ -z "$(running)" ] || { stop; start; } ;;
    'stop tunny.service') [ -z "$(running)" ] || stop ;;
    'try-restart tunny-controller.service') [ -z "$(leading)" ] || { end "$(leading)"; start_controller; } ;;
    'stop tunny-controller.service') [ -z "$(leading)" ] || end "$(leading)" ;;
    esac
    exit 0
fi

debs=$2 work=$3
deb=$debs/tunny.deb old=$debs/old-tunny.deb
if [ -z "${TUNNY_DEB_CHROOT:-}" ]; then
    # The copy: everything that is written goes to memory, and ends with the namespace.
    mount -t tmpfs tmpfs "$work"
    mkdir "$work/upper" "$work/work" "$work/root"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$work/root"
    for what in proc sys dev; do mount --rbind "/$what" "$work/root/$what"; done
    mount -t tmpfs tmpfs "$work/root/run"
    mount -t tmpfs tmpfs "$work/root/tmp"
    mount -t bpf bpf "$work/root/sys/fs/bpf"
    mkdir -p "$work/root/run/here/packaging" "$work/root/run/systemd/system" "$work/root/run/debs"
    cp "$debs"/*.deb "$work/root/run/debs/"
    cp packaging/test-deb.sh "$work/root/run/here/packaging/"
    printf '#!/bin/sh\nexec /run/here/packaging/test-deb.sh systemctl "$@"\n' >"$work/root/usr/local/bin/systemctl"
    chmod 755 "$work/root/usr/local/bin/systemctl"
    status=0
    TUNNY_DEB_CHROOT=1 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot "$work/root" \
        /run/here/packaging/test-deb.sh inside /run/debs / || status=$?
    umount -l "$work"
    exit $status
fi

# From here on inside the copy. Whatever fails, no node stays behind.
trap 'kill -9 $(running) $(leading) $(jobs -p) 2>/dev/null || true' EXIT
install() { dpkg -i "$@" >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log >&2; fail "dpkg -i $*"; }; }
purge() { dpkg -P "$@" >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log >&2; fail "dpkg -P $*"; }; }
verify() {
    # Units that this system lacks are not ours to complain about.
    systemd-analyze verify --recursive-errors=no "/lib/systemd/system/$1" 2>&1 | grep -F tunny >/tmp/verify &&
        { cat /tmp/verify >&2; fail "systemd-analyze verify $1"; }
    systemd-analyze security --offline=yes --threshold=30 "/lib/systemd/system/$1" | tail -1
}
# A host with one VM, behind its own uplink of the gateway: host N. Neighbours are permanent: ARP is the software path's, and
# this test is about the fast one.
host() {
    local in="nsenter --net=/run/netns/h$1" mac
    ip netns add "h$1"
    ip link add "up$1" numrxqueues 1 numtxqueues 1 type veth peer name far netns "h$1" numrxqueues 1 numtxqueues 1
    ip addr add "172.31.$1.1/24" dev "up$1"
    ip link set "up$1" up
    $in ip link set lo up
    $in ip link set far up
    $in ethtool -K far gro on tx off >/dev/null
    $in ip addr add "172.31.$1.2/24" dev far
    $in ip route add 192.0.2.1 via "172.31.$1.1"
    mac=$($in cat /sys/class/net/far/address 2>/dev/null || $in ip -br link show far | awk '{print $3}')
    ip neigh replace "172.31.$1.2" lladdr "$mac" dev "up$1" nud permanent
    $in ip neigh replace "172.31.$1.1" lladdr "$(ip -br link show "up$1" | awk '{print $3}')" dev far nud permanent
    $in ip link add vx type vxlan id 100 local "172.31.$1.2" remote 192.0.2.1 dstport 4789 nolearning
    $in ip link set vx address "02:00:00:00:00:1$1" mtu 1450 up
    $in ip addr add "10.0.0.1$1/24" dev vx
    $in ip neigh replace "10.0.0.1$((3 - $1))" lladdr 02:00:00:00:ff:01 dev vx nud permanent
}
# A thousand packets a second from VM to VM, in runs of 200, until `nothing_lost`, which sets sent.
traffic() {
    rm -f /tmp/over
    while [ ! -e /tmp/over ]; do
        nsenter --net=/run/netns/h1 ping -q -i 0.001 -c 200 -W 2 10.0.0.12 || true
    done >/tmp/ping 2>&1 &
    pinging=$!
}
nothing_lost() {
    touch /tmp/over
    wait $pinging
    sent=$((200 * $(grep -c 'packets transmitted' /tmp/ping)))
    if grep 'packets transmitted' /tmp/ping | grep -v '^200 packets transmitted, 200 received, 0% packet loss' >&2; then
        tunny get drops >&2
        fail "packets were lost"
    fi
    [ "$sent" -ge 1000 ] || fail "only $sent packets while the node was upgraded"
}
layout() { tunny version | sed 's/.*layout //'; }
fast() { tunny get counters -o json | tr -d ' \n' | sed -n 's/.*"fast":{[^}]*"forwarded":\([0-9]*\).*/\1/p'; }
ip link set lo up
ip addr add 192.0.2.1/32 dev lo
host 1
host 2
say "installing"
install "$deb"
id tunny >/dev/null || fail "there is no user tunny"
[ "$(stat -c %U:%G:%a /etc/tunny)" = root:tunny:750 ] || fail "/etc/tunny is $(stat -c %U:%G:%a /etc/tunny)"
[ "$(stat -c %a /etc/tunny/gateway.yaml)" = 640 ] || fail "the mode of gateway.yaml"
tunny version
tunny-lab --version
for page in operations.md cli.md cli-lab.md configuration.md reasons.md copyright; do
    [ -s "/usr/share/doc/tunny/$page" ] || fail "/usr/share/doc/tunny/$page is missing"
done

zcat /usr/share/man/man1/tunny-node.1.gz | grep -q uninstall || fail "no manual page"
zcat /usr/share/man/man1/tunny-lab-bench.1.gz | grep -q samples || fail "no manual page of tunny-lab"
for program in tunny tunny-lab; do
    bash -c 'source "/usr/share/bash-completion/completions/$1" && complete -p "$1"' sh "$program" >/dev/null || fail "no completion of $program"
done
tunny validate /usr/share/doc/tunny/examples/region.yaml >/dev/null || fail "the example is not valid"

say "the units"
for each in tunny.service tunny@.service tunny-agent.service tunny-host-agent.service tunny-watchdog.service; do
    verify "$each"
done

cat >/etc/tunny/gateway.yaml <<YAML
apiVersion: tunny/v1
kind: Gateway
metadata: {name: gateway}
spec: {vtep: {ipv4: 192.0.2.1}, uplinks: [up1, up2], engine: native}
---
apiVersion: tunny/v1
kind: Vpc
metadata: {name: red}
spec: {vni: 100, gateway: {mac: "02:00:00:00:ff:01", addresses: [10.0.0.1]}}
---
apiVersion: tunny/v1
kind: Route
metadata: {name: red}
spec: {vpc: red, prefix: 10.0.0.0/24, scope: local}
YAML
for n in 1 2; do
    cat >>/etc/tunny/gateway.yaml <<YAML
---
apiVersion: tunny/v1
kind: Nc
metadata: {name: h$n}
spec: {address: 172.31.$n.2}
---
apiVersion: tunny/v1
kind: Vm
metadata: {name: vm$n}
spec: {vpc: red, addresses: [10.0.0.1$n], mac: "02:00:00:00:00:1$n", nc: h$n}
YAML
done

cp /etc/tunny/gateway.yaml /tmp/gateway.yaml
# What the unit says, done by hand.
prepare() {
    value ExecStartPre | sed 's/^+//' | while read -r command; do $command; done
    mkdir -p /var/lib/tunny /run/tunny /var/log/tunny
    chown tunny:tunny /var/lib/tunny /run/tunny /var/log/tunny
    chmod "$(value StateDirectoryMode)" /var/lib/tunny
}
prepare

say "the unit's command line, as its user, with its rights"
start
tunny get status
tunny get status -o json | tr -d ' \n' | grep -q '"mode":"native"' || fail "up1 is not served in native mode"
tunny get status | grep WARNING && fail "the node lacks something"
tunny get counters | grep -q 'balanced.*: yes' || fail "not balanced"
[ "$(stat -c %U:%a /run/tunny/default.sock)" = tunny:660 ] || fail "the socket is $(stat -c %U:%a /run/tunny/default.sock)"
say "stop and start: taken over"
stop
ls /sys/fs/bpf/tunny/default | grep -q '^link-' || fail "the fast path did not stay"

# What systemd would filter is compared with what the node does.
if strace -o /dev/null true 2>/dev/null; then
    trace=(strace -f -qq -o /tmp/strace)
elif [ -n "${TUNNY_CI:-}" ]; then
    fail "strace is not permitted, and with TUNNY_CI=1 nothing is skipped"
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

trace=()

say "an upgrade while the node forwards"
mkdir -p /var/log/tunny
touch /var/log/tunny/sessions.log
purge tunny
[ ! -e /sys/fs/bpf/tunny/default ] || fail "removal left the fast path on the ports"
install "$old"
cp /tmp/gateway.yaml /etc/tunny/gateway.yaml
prepare
start
for _ in $(seq 50); do
    nsenter --net=/run/netns/h1 ping -q -c 1 -W 1 10.0.0.12 >/dev/null && break
done
pid=$(running) before=$(fast) before_layout=$(layout)
traffic
sleep 1
install "$deb"
[ "$(running)" != "$pid" ] || fail "the upgrade did not restart the node"
# Tables of the same layout are taken over; others are built beside, and the ports switched.
if [ "$(layout)" = "$before_layout" ]; then
    tunny get status -o json | tr -d ' \n' | grep -q '"took_over":true' || fail "the new version did not take the tables over"
else
    say "from table layout $before_layout to $(layout)"
fi
sleep 1
nothing_lost
# There and back; the counters of the fast path go on over the restart.
[ $(($(fast) - before)) -ge $((2 * sent)) ] || fail "the fast path forwarded $(($(fast) - before)) of $((2 * sent)) packets"
say "$sent packets sent and answered during the upgrade, none lost, all by the fast path; $(dpkg-query -W -f '${Version}' tunny) runs"

say "an upgrade from another table layout while the node forwards"
traffic
stop
# To its successor the layout of its predecessor is another one.
mv /sys/fs/bpf/tunny/default/layout-* /sys/fs/bpf/tunny/default/layout-0000000000000001
start
tunny get status -o json | tr -d ' \n' | grep -q '"took_over":false' || fail "tables of another layout were taken over"
[ ! -e /sys/fs/bpf/tunny/default/layout-0000000000000001 ] || fail "the tables of the other layout are still there"
sleep 1
nothing_lost
say "$sent packets sent and answered during the change of layouts, none lost"
grep -q "try-restart tunny.service tunny@\*.service tunny-agent.service tunny-host-agent.service tunny-watchdog.service" /tmp/systemctl || fail "not all services are restarted"
stop

say "the agent, as its user, with its rights"
mkdir -p /run/tunny/agent /var/lib/tunny/agent
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >/etc/tunny/agent.key
chmod 600 /etc/tunny/agent.key
chown -R tunny:tunny /run/tunny /var/lib/tunny /etc/tunny/agent.key
as_unit /lib/systemd/system/tunny-agent.service /tmp/agent.log 'listening on' $(value ExecStart /lib/systemd/system/tunny-agent.service)
kill -TERM $!
wait $! || true

say "upgrade while the node is stopped, removal, purge"
install "$deb"
grep -q 'engine: native' /etc/tunny/gateway.yaml || fail "an upgrade lost the configuration"
ls /sys/fs/bpf/tunny/default | grep -q '^link-' || fail "an upgrade took the fast path away"
# Configuration may lie in other files.
rm /etc/tunny/gateway.yaml
install "$deb"
dpkg -r tunny >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log >&2; fail "dpkg -r"; }
[ ! -e /sys/fs/bpf/tunny/default ] || fail "removal left the fast path on the ports"
[ -d /var/lib/tunny ] || fail "removal took the state away"
purge tunny
if [ -e /var/lib/tunny ] || [ -e /var/log/tunny ] || [ -e /etc/tunny ]; then fail "purge left something"; fi

say "the controller's package: install, init, start"
install "$old" "$debs/old-controller.deb"
verify tunny-controller.service
id tunny-controller >/dev/null || fail "there is no user tunny-controller"
tunny controller init $region --region north --name ctl.example
# As systemd makes it the service's own before the start.
own_region() {
    chown -R "$(value User "$of_controller"):" $region
    chmod "$(value StateDirectoryMode "$of_controller")" $region
}
own_region
start_controller
ask apply --yes - <<YAML
apiVersion: tunny/v1
kind: Cluster
metadata: {name: c}
spec: {addresses: [192.0.2.9]}
---
apiVersion: tunny/v1
kind: Vpc
metadata: {name: red}
spec: {vni: 77}
---
apiVersion: tunny/v1
kind: Tenant
metadata: {name: red}
spec: {vpcs: [red], cluster: c}
---
apiVersion: tunny/v1
kind: Role
metadata: {name: host-7}
spec: {access: host}
YAML

say "an upgrade of the controller while it runs"
pid=$(leading)
install "$deb" "$debs/controller.deb"
[ "$(leading)" != "$pid" ] || fail "the upgrade did not restart the controller"
[ "$(ask get tenant/red -o 'jsonpath={.spec.cluster}')" = c ] || fail "an upgrade lost an object"

say "the host agent, as its user, with its rights"
ip link add vx77 type vxlan id 77 local 192.0.2.1 dstport 4790 nolearning
ip link set vx77 up
cp $region/ca.crt /etc/tunny/
ask credential create host-7 --certificate --out /etc/tunny/host-7
chown root:tunny /etc/tunny/host-7.*
chmod 640 /etc/tunny/host-7.*
sed 's/ctl.example/localhost/' /usr/share/doc/tunny/examples/host-agent.env >/etc/tunny/host-agent.env
of_agent=/lib/systemd/system/tunny-host-agent.service
as_unit "$of_agent" /tmp/host-agent.log 'VNI 77 goes to 192.0.2.9' env $(grep '^TUNNY_' /etc/tunny/host-agent.env) $(value ExecStart "$of_agent")
agent=$!
bridge fdb show dev vx77 | grep -q '^00:00:00:00:00:00 dst 192.0.2.9 ' || fail "vx77 does not lead to the cluster"
kill -TERM $agent
wait $agent || true

say "removal and purge of the controller"
pid=$(leading)
dpkg -r tunny-controller >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log >&2; fail "dpkg -r tunny-controller"; }
! kill -0 "$pid" 2>/dev/null || fail "removal left the controller running"
[ -s $region/ca.key ] || fail "removal took the region away"
install "$debs/controller.deb"
start_controller
[ "$(ask get tenant/red -o name)" = tenant/red ] || fail "the region is not there after a removal"
end "$(leading)"
purge tunny-controller tunny
[ ! -e $region ] || fail "purge left the region"
say "all is well"
