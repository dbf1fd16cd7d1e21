#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# lib.sh - network plumbing and multi-step forwarder start/stop functions.
#
# bench.py calls it as   lib.sh FUNCTION ARGS...   with these in the environment:
#   BENCH  the bench folder            RUN   a fresh scratch folder for this start
#   BIN    the helpers' folder         ROUTER  the router's program
#   NS_A NS_B  the two host namespaces NS_F  the forwarder's namespace
#   TAPA TAPB  host-side device names  PA PB forwarder-side veth names
#   MAC_A MAC_B GWMAC_A GWMAC_B        the Ethernet addresses in use
# A start function that leaves processes behind writes their pids, one a line,
# to $RUN/pids; bench.py measures and later ends exactly those.
set -u
PATH=$PATH:/usr/sbin:/sbin

inA() { ip netns exec "$NS_A" "$@"; }
inB() { ip netns exec "$NS_B" "$@"; }
inF() { ip netns exec "$NS_F" "$@"; }
addpid() { echo "$1" >>"$RUN/pids"; }

# ---------------------------------------------------------------- namespaces
net_create() {
  local n
  for n in "$NS_A" "$NS_B" "$NS_F"; do
    ip netns add "$n" || return 1
    ip -n "$n" link set lo up
    ip netns exec "$n" sysctl -qw net.ipv6.conf.default.accept_dad=0 \
      net.ipv6.conf.default.accept_ra=0 net.ipv6.conf.default.router_solicitations=0 \
      net.ipv6.conf.default.disable_ipv6=1
    # IPv6 stays off until both ends are up: a multicast report written to a TAP
    # that is still down gives EIO, which some forwarders take as the end.
  done
}

net_destroy() {
  local n
  for n in "$NS_A" "$NS_B" "$NS_F"; do
    [ -e "/run/netns/$n" ] && ip netns del "$n"
  done
  return 0
}

# veth pairs: TAPA lives in A with its peer PA in F, TAPB in B with PB in F
veth_create() {
  ip -n "$NS_F" link add "$PA" address "$GWMAC_A" numtxqueues 1 numrxqueues 1 type veth \
    peer name "$TAPA" netns "$NS_A" address "$MAC_A" numtxqueues 1 numrxqueues 1 || return 1
  ip -n "$NS_F" link add "$PB" address "$GWMAC_B" numtxqueues 1 numrxqueues 1 type veth \
    peer name "$TAPB" netns "$NS_B" address "$MAC_B" numtxqueues 1 numrxqueues 1 || return 1
  ip -n "$NS_F" link set "$PA" up && ip -n "$NS_F" link set "$PB" up
}

# wait (max 8 s) for both devices to appear in F, then hand them to the hosts
taps_move() {
  local d ns i
  for i in $(seq 160); do
    [ -n "$(ip -n "$NS_F" -o link show "$TAPA" 2>/dev/null)" ] &&
      [ -n "$(ip -n "$NS_F" -o link show "$TAPB" 2>/dev/null)" ] && break
    sleep 0.05
  done
  sleep 0.2 # a forwarder may still be configuring the second one
  ip -n "$NS_F" link set "$TAPA" netns "$NS_A" || return 1
  ip -n "$NS_F" link set "$TAPB" netns "$NS_B" || return 1
}

# host_addr l2|l3 ether|tun static|dynamic   addresses, routes, neighbours
host_addr() {
  local layer=$1 kind=$2 neigh=$3
  if [ "$kind" = ether ]; then
    ip -n "$NS_A" link set "$TAPA" down; ip -n "$NS_A" link set "$TAPA" address "$MAC_A" || return 1
    ip -n "$NS_B" link set "$TAPB" down; ip -n "$NS_B" link set "$TAPB" address "$MAC_B" || return 1
  fi
  ip -n "$NS_A" link set "$TAPA" mtu 1500 up || return 1
  ip -n "$NS_B" link set "$TAPB" mtu 1500 up || return 1
  inA sysctl -qw "net.ipv6.conf.$TAPA.disable_ipv6=0"; inB sysctl -qw "net.ipv6.conf.$TAPB.disable_ipv6=0"
  if [ "$layer" = l2 ]; then
    ip -n "$NS_A" addr add 10.99.0.1/24 dev "$TAPA"
    ip -n "$NS_B" addr add 10.99.0.2/24 dev "$TAPB"
    ip -n "$NS_A" addr add fd99::1/64 dev "$TAPA" nodad
    ip -n "$NS_B" addr add fd99::2/64 dev "$TAPB" nodad
  else
    ip -n "$NS_A" addr add 10.99.1.1/24 dev "$TAPA"
    ip -n "$NS_B" addr add 10.99.2.1/24 dev "$TAPB"
    ip -n "$NS_A" addr add fd99:0:0:1::1/64 dev "$TAPA" nodad
    ip -n "$NS_B" addr add fd99:0:0:2::1/64 dev "$TAPB" nodad
    if [ "$kind" = tun ]; then
      ip -n "$NS_A" route add 10.99.2.0/24 dev "$TAPA"
      ip -n "$NS_B" route add 10.99.1.0/24 dev "$TAPB"
      ip -n "$NS_A" -6 route add fd99:0:0:2::/64 dev "$TAPA"
      ip -n "$NS_B" -6 route add fd99:0:0:1::/64 dev "$TAPB"
    else
      ip -n "$NS_A" route add default via 10.99.1.254
      ip -n "$NS_B" route add default via 10.99.2.254
      ip -n "$NS_A" -6 route add default via fd99:0:0:1::fe dev "$TAPA"
      ip -n "$NS_B" -6 route add default via fd99:0:0:2::fe dev "$TAPB"
      if [ "$neigh" = static ]; then
        ip -n "$NS_A" neigh replace 10.99.1.254 lladdr "$GWMAC_A" dev "$TAPA" nud permanent
        ip -n "$NS_B" neigh replace 10.99.2.254 lladdr "$GWMAC_B" dev "$TAPB" nud permanent
        ip -n "$NS_A" neigh replace fd99:0:0:1::fe lladdr "$GWMAC_A" dev "$TAPA" nud permanent
        ip -n "$NS_B" neigh replace fd99:0:0:2::fe lladdr "$GWMAC_B" dev "$TAPB" nud permanent
      fi
    fi
  fi
  sink_filter "$NS_A" "$TAPA"; sink_filter "$NS_B" "$TAPB"
  return 0
}

# Drop UDP port 9 (the pps test) right after the device's rx counter, so the
# test weighs the forwarder and not the receiving IP stack.  Classic BPF with
# direct-action: return 2 = TC_ACT_SHOT, -1 = go on.  Offsets are relative to
# the network header (SKF_NET_OFF) so that it fits TUN devices as well.
sink_filter() {
  ip netns exec "$1" tc qdisc add dev "$2" clsact 2>/dev/null &&
    ip netns exec "$1" tc filter add dev "$2" ingress bpf da bytecode \
      '13,32 0 0 4294963200,21 0 4 2048,48 0 0 4293918729,21 0 8 17,40 0 0 4293918742,21 5 6 9,21 0 5 34525,48 0 0 4293918726,21 0 3 17,40 0 0 4293918762,21 0 1 9,6 0 0 2,6 0 0 4294967295' ||
    echo "warning: no sink filter on $2" >&2
}

# offloads on|off on both host devices
offloads() {
  inA ethtool -K "$TAPA" tx "$1" sg "$1" tso "$1" gso "$1" gro "$1" >/dev/null 2>&1
  inB ethtool -K "$TAPB" tx "$1" sg "$1" tso "$1" gso "$1" gro "$1" >/dev/null 2>&1
  return 0
}

# ---------------------------------------------------------------- forwarders
noop() { :; }
testpmd_stop() { rm -rf "/var/run/dpdk/$(basename "$RUN")"; }

# our router, with a configuration written for the run
# usage: taprouter_start l2|l3 QUEUES [CHILD-QDISC [tap|tun [BACKEND]]]
taprouter_start() {
  local layer=$1 queues=$2 child=${3:-pfifo_fast} type=${4:-tap} backend=${5:-native} c=$RUN/taprouter.yaml a='' b=''
  local port="type: $type, backend: $backend, queues: $queues, qdisc: {kind: mq, child: {kind: $child}}"
  [ -x "$ROUTER" ] || { echo "there is no $ROUTER: make build, or set ROUTER" >&2; return 1; }
  if [ "$layer" = l3 ]; then
    a=", addresses: [10.99.1.254/24, \"fd99:0:0:1::fe/64\"]"
    b=", addresses: [10.99.2.254/24, \"fd99:0:0:2::fe/64\"]"
    [ "$type" = tap ] && a=", mac: \"$GWMAC_A\"$a" b=", mac: \"$GWMAC_B\"$b"
  fi
  {
    echo "version: 1"
    echo "ports:"
    echo "  - {name: $TAPA, $port$a}"
    echo "  - {name: $TAPB, $port$b}"
    [ "$layer" = l2 ] && { echo "bridges:"; echo "  - {name: br0, ports: [$TAPA, $TAPB]}"; }
  } >"$c"
  ip netns exec "$NS_F" "$ROUTER" run -c "$c" --name "bench-$NS_F" >"$RUN/taprouter.log" 2>&1 &
  addpid $!
}

# (a) kernel bridge, (b) kernel router: nothing in userspace
kbridge_start() {
  ip -n "$NS_F" link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0 || return 1
  inF sysctl -qw net.bridge.bridge-nf-call-iptables=0 net.bridge.bridge-nf-call-ip6tables=0 2>/dev/null
  ip -n "$NS_F" link set "$PA" master br0
  ip -n "$NS_F" link set "$PB" master br0
  ip -n "$NS_F" link set br0 up
}
kroute_start() {
  inF sysctl -qw "net.ipv6.conf.$PA.disable_ipv6=0" "net.ipv6.conf.$PB.disable_ipv6=0"
  inF sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
  ip -n "$NS_F" addr add 10.99.1.254/24 dev "$PA"
  ip -n "$NS_F" addr add 10.99.2.254/24 dev "$PB"
  ip -n "$NS_F" addr add fd99:0:0:1::fe/64 dev "$PA" nodad
  ip -n "$NS_F" addr add fd99:0:0:2::fe/64 dev "$PB" nodad
}

# (c) Open vSwitch, userspace datapath, daemons started by hand.
#   ovs_start tap     ports of type "tap" (ovs opens /dev/net/tun itself)
#   ovs_start system  veth peers through netdev-linux (AF_PACKET)
#   ovs_start afxdp   veth peers through AF_XDP
ovs_start() {
  local kind=$1 a b d=$RUN/ovs i
  mkdir -p "$d"; export OVS_RUNDIR=$d OVS_DBDIR=$d OVS_LOGDIR=$d OVS_SYSCONFDIR=$d
  ovsdb-tool create "$d/conf.db" /usr/share/openvswitch/vswitch.ovsschema || return 1
  ovsdb-server "$d/conf.db" --remote=punix:"$d/db.sock" --pidfile="$d/db.pid" --detach --no-chdir --log-file="$d/db.log" -vconsole:off || return 1
  addpid "$(cat "$d/db.pid")"
  local vs="ovs-vsctl --db=unix:$d/db.sock -t 8"
  $vs --no-wait init
  [ -n "${OVS_OTHER:-}" ] && $vs --no-wait set Open_vSwitch . $OVS_OTHER
  inF ovs-vswitchd unix:"$d/db.sock" --pidfile="$d/vs.pid" --detach --no-chdir --log-file="$d/vs.log" -vconsole:off || return 1
  addpid "$(cat "$d/vs.pid")"
  $vs add-br br0 -- set bridge br0 datapath_type=netdev fail-mode=standalone || return 1
  if [ "$kind" = tap ]; then a=$TAPA b=$TAPB; else a=$PA b=$PB; fi
  $vs add-port br0 "$a" -- set interface "$a" type="$kind" ${OVS_IFOPT:-} || return 1
  $vs add-port br0 "$b" -- set interface "$b" type="$kind" ${OVS_IFOPT:-} || return 1
}

# A program that leaves at the end of its input gets a fifo nobody writes to.
open_stdin() {
  mkfifo "$RUN/in"
  sleep 100000 >"$RUN/in" &
  echo $! >"$RUN/helper.pids"
}

# (d) vde_switch with two taps in one process
vde_start() {
  open_stdin
  ip netns exec "$NS_F" vde_switch -s "$RUN/vde" -t "$TAPA" -t "$TAPB" <"$RUN/in" & addpid $!
}

# (d2) vde_switch without taps plus one vde_plug2tap per tap (three processes)
vde_plug_start() {
  open_stdin
  ip netns exec "$NS_F" vde_switch -s "$RUN/vde" <"$RUN/in" & addpid $!
  sleep 0.3
  ip netns exec "$NS_F" vde_plug2tap -s "$RUN/vde" "$TAPA" <"$RUN/in" & addpid $!
  ip netns exec "$NS_F" vde_plug2tap -s "$RUN/vde" "$TAPB" <"$RUN/in" & addpid $!
}

# (f) DPDK testpmd, no hugepages, io forwarding between two ports.
#   testpmd_start tap      net_tap PMD     testpmd_start afpkt   net_af_packet on veth
testpmd_start() {
  local v
  if [ "$1" = tap ]; then
    v="--vdev=net_tap0,iface=$TAPA --vdev=net_tap1,iface=$TAPB"
  else
    v="--vdev=net_af_packet0,iface=$PA,blocksz=4096,framesz=2048,framecnt=512 --vdev=net_af_packet1,iface=$PB,blocksz=4096,framesz=2048,framecnt=512"
  fi
  open_stdin
  ip netns exec "$NS_F" dpdk-testpmd -l 0,1 --no-huge -m 256 --no-pci --file-prefix="$(basename "$RUN")" $v -- \
    --forward-mode=io --auto-start --nb-cores=1 --total-num-mbufs=8192 --no-mlockall \
    <"$RUN/in" >"$RUN/testpmd.log" 2>&1 & addpid $!
}

"$@"
