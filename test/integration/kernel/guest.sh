#!/bin/bash
# The kernel's own WireGuard under clusternet: runs as root in the virtual machine that scripts/vm.sh boots.
# Three machines (network namespaces a, b, c on a bridge) run agents, the guest itself runs the Curator.
# Prints `ok NAME` or `not ok NAME` for each check, and `# ...` lines that explain a failure before it;
# test/integration/kernel.test.ts knows the names.
# Needs /payload/clusternet (the executable), /payload/crowd.js (test/lab/crowd.ts as one file) and ping.
# Usage: guest.sh CROWD-SIZE, how many nodes come and go in one of the checks.
set -u

crowd_size=$1
program=/payload/clusternet
curator=192.0.2.254:7835
late_ms=1000
result=/tmp/ping.result
: >"$result"
pings=()

note() { while IFS= read -r line; do printf '# %s\n' "$line"; done; }

# check NAME FUNCTION [ARG...]: what the function prints is shown only when it fails. It runs in this shell, not in
# a subshell: it starts agents and waits for them.
check() {
  local name=$1 started=$SECONDS log
  shift
  if "$@" >/tmp/check.out 2>&1; then
    echo "# after $((SECONDS - started)) s:"
    echo "ok $name"
  else
    [ "${#pings[@]}" -eq 0 ] || kill "${pings[@]}" 2>/dev/null
    note </tmp/check.out
    for log in /tmp/*.log; do echo "$log:"; tail -n 25 "$log"; done | note
    echo "not ok $name"
  fi
}

# wait_for SECONDS COMMAND...: until the command succeeds.
wait_for() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    if [ "$SECONDS" -ge "$deadline" ]; then
      echo "waited in vain for: $*"
      return 1
    fi
    sleep 0.1
  done
}

on() { ip netns exec "$@"; }

# The same in the background, with the program itself as $!, not a subshell around it.
spawn_on() { exec ip netns exec "$@"; }

# agent NAME POD-NUMBER [FLAG...]: its process is in agents[NAME]; it compares the host every $resync seconds.
declare -A agents
resync=10
agent() {
  local name=$1 pod=$2 address
  shift 2
  case $name in a) address=192.0.2.1 ;; b) address=192.0.2.2 ;; *) address=192.0.2.3 ;; esac
  spawn_on "$name" "$program" run --insecure --insecure-anywhere --node-id "$name" --curator "$curator" \
    --data-dir "/data/$name" --external-address "$address" --report-status on \
    --cluster-net 10.192.0.0/11 --cluster-net fd10:c1::/32 \
    --pod-prefix "10.192.$pod.0/24" --pod-prefix "fd10:c1:0:$pod::/64" --resync "$resync" "$@" >>"/tmp/$name.log" 2>&1 &
  agents[$name]=$!
}

# The public key of a node, as its peers see it.
key_of() { on "$1" wg show clusternet public-key; }

has_peers() { [ "$(on "$1" wg show clusternet peers | wc -l)" -eq "$2" ]; }

# allowed NODE PEER-KEY: its allowed IPs, sorted, in one line.
allowed() { on "$1" wg show clusternet allowed-ips | awk -v key="$2" '$1 == key { for (i = 2; i <= NF; i++) print $i }' | sort | tr '\n' ' '; }

is_allowed() { [ "$(allowed "$1" "$2")" = "$3" ]; }

answers() { on "$1" ping -n -c 1 -W 1 "$2"; }

index_of() { on "$1" cat /sys/class/net/clusternet/ifindex; }

# 200 packets a second from machine $1 to $2, by four processes: iputils' ping waits in a busy loop for what is less
# than 10 ms away, and would take a processor from the agents.
ping_start() {
  local i
  pings=()
  for i in 1 2 3 4; do
    : >"/tmp/ping.err.$i"
    spawn_on "$1" ping -n -i 0.02 "$2" >"/tmp/ping.out.$i" 2>>"/tmp/ping.err.$i" &
    pings+=($!)
    sleep 0.005
  done
  for i in 1 2 3 4; do wait_for 10 test -s "/tmp/ping.out.$i" || return 1; done
}

# Sets counts[1..4] to what the processes have sent, sent to their sum.
pings_count() {
  local i
  counts=() sent=0
  for i in 1 2 3 4; do : >"/tmp/ping.err.$i"; done
  kill -QUIT "${pings[@]}"
  for i in 1 2 3 4; do
    wait_for 10 grep -q packets "/tmp/ping.err.$i" || return 1
    counts[i]=$(sed -n 's,.*/\([0-9]*\) packets.*,\1,p' "/tmp/ping.err.$i" | tail -n 1)
    sent=$((sent + counts[i]))
  done
}

sent_at_least() { pings_count && [ "$sent" -ge "$1" ]; }

# Ends the ping after it has sent at least $1 packets. Fails when one of them got no reply, or a late one.
ping_stop() {
  local i status
  wait_for 120 sent_at_least "$1" || return 1
  pings_count || return 1
  for i in 1 2 3 4; do wait_for 1 grep -q "icmp_seq=${counts[i]} " "/tmp/ping.out.$i"; done
  kill -INT "${pings[@]}"
  wait "${pings[@]}"
  pings=()
  for i in 1 2 3 4; do
    echo "sent ${counts[i]}"
    cat "/tmp/ping.out.$i"
  done | awk -v limit="$late_ms" '
    $1 == "sent" { sent = $2; stream++; total += sent; last[stream] = sent }
    match($0, /icmp_seq=[0-9]+/) { number = substr($0, RSTART + 9, RLENGTH - 9) + 0 }
    match($0, /time=[0-9.]+/) && number <= sent && !((stream, number) in ms) {
      ms[stream, number] = substr($0, RSTART + 5, RLENGTH - 5) + 0
      # ping goes by the time of day: one that was on its way while the clock was set forward says nothing of its time.
      if (ms[stream, number] > 3600000) ms[stream, number] = 0
      if (ms[stream, number] > max) max = ms[stream, number]
    }
    END {
      for (s = 1; s <= stream; s++) for (i = 1; i <= last[s]; i++) {
        if (!((s, i) in ms)) { if (++lost <= 20) first = first " " s "/" i }
        else if (ms[s, i] > limit) late++
      }
      printf "%d sent, %d without reply (%s ), %d late, slowest %s ms\n", total, lost, first, late, max
      exit lost + late > 0 || total == 0
    }' >"$result"
  status=$?
  cat "$result"
  return "$status"
}

# fault NAME [SECONDS]: a row of the table of faults, with what the last ping_stop counted.
fault() {
  local counted
  counted=$(sed -n 's/^\([0-9]*\) sent, \([0-9]*\) without .*, \([0-9]*\) late, slowest \([0-9.]*\) ms/\1 \2 \3 \4/p' "$result")
  faults+=("$1|${counted:-0 0 0 0}|${2:--}")
}
faults=()

# What there is on a machine besides the peers' traffic counters: for comparing before and after.
inventory() {
  on "$1" ip -o link | sed 's/^[0-9]*: //; s/@if[0-9]*//'
  on "$1" ip -o -4 address | awk '{ print $2, $4 }'
  on "$1" ip -o -6 address | awk '{ print $2, $4 }'
  on "$1" ip route show table all
  on "$1" ip -6 route show table all
  on "$1" ip rule
  on "$1" ip -6 rule
}

ip link add bridge type bridge forward_delay 0 mcast_snooping 0
ip address add 192.0.2.254/24 dev bridge
ip link set bridge up
mkdir -p /data
for name in a b c; do
  ip netns add "$name"
  ip link add name "to-$name" type veth peer name eth0 netns "$name"
  ip link set dev "to-$name" master bridge up
  on "$name" sh -c 'echo 0 >/proc/sys/net/ipv6/conf/all/accept_dad; echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad'
  on "$name" ip link set lo up
  on "$name" ip link set eth0 up
done
on a ip address add 192.0.2.1/24 dev eth0
on b ip address add 192.0.2.2/24 dev eth0
on c ip address add 192.0.2.3/24 dev eth0
# Link-local addresses come by themselves, after a moment, and their routes when they are proved to be ours alone:
# what is compared later must be there before.
for name in a b c; do wait_for 10 on "$name" sh -c 'ip -6 address show dev eth0 | grep fe80 | grep -qv tentative'; done
inventory a >/tmp/before

start_curator() {
  "$program" curator --insecure --insecure-anywhere --listen "$curator" --data-dir /data/curator \
    --cluster-net 10.192.0.0/11 --cluster-net fd10:c1::/32 >/tmp/curator.log 2>&1 &
  curator_process=$!
  wait_for 30 grep -q listening /tmp/curator.log
}
start_curator

first_apply() {
  wait_for 60 has_peers a 2 && wait_for 60 has_peers b 2 && wait_for 60 has_peers c 2 || return 1
  local from to
  for from in a b c; do
    for to in 1 2 3; do
      wait_for 10 answers "$from" "10.192.$to.1" && wait_for 10 answers "$from" "fd10:c1:0:$to::1" || return 1
    done
  done
}
agent a 1
agent b 2
agent c 3
check "first apply: every node reaches every other in both families" first_apply

interface_is_right() {
  on a ip -d link show clusternet
  on a ip route
  on a ip -6 route
  on a ip -d link show clusternet | grep -q 'mtu 1420 .*group 9 ' &&
    on a ip -d link show clusternet | grep -q '^ *wireguard' &&
    ! on a test -e /run/wireguard/clusternet.sock &&
    [ "$(on a wg show clusternet listen-port)" = 7838 ] &&
    on a ip route | grep -q '^10.192.0.0/11 dev clusternet proto 129 .*src 10.192.1.1' &&
    on a ip -6 route | grep -q '^fd10:c1::/32 dev clusternet proto 129 .*src fd10:c1:0:1::1'
}
check "the interface is the kernel's, with group, MTU, port and routes" interface_is_right

# unreachable TARGET: whether the machine a is told at once, and not after a wait, that nobody has this address.
unreachable() {
  local before=${EPOCHREALTIME/[.,]/} took
  on a ping -n -c 1 -W 10 "$1" >/tmp/unreachable 2>&1 && return 1
  took=$((${EPOCHREALTIME/[.,]/} - before))
  cat /tmp/unreachable
  echo "after $((took / 1000)) ms"
  grep -Eiq 'unreachable|Required key not available' /tmp/unreachable && [ "$took" -lt 3000000 ]
}
no_peer() { unreachable 10.192.77.1 && unreachable fd10:c1:0:77::1; }
check "an address that no peer has is said to be unreachable at once" no_peer

change() {
  local index b_allowed c_key
  index=$(index_of a) b_allowed=$(allowed a "$(key_of b)") c_key=$(key_of c)
  kill -TERM "${agents[c]}"
  wait "${agents[c]}"
  agent c 33
  wait_for 60 is_allowed a "$c_key" "10.192.33.0/24 192.0.2.3/32 fd10:c1:0:33::/64 " || return 1
  wait_for 10 answers a 10.192.33.1 && ! answers a 10.192.3.1 &&
    [ "$(index_of a)" = "$index" ] && [ "$(allowed a "$(key_of b)")" = "$b_allowed" ]
}
check "change: a node's new prefixes replace the old ones at its peers, and nothing else moves" change

removal() {
  kill -TERM "${agents[c]}"
  wait "${agents[c]}"
  "$program" node remove c --data-dir /data/curator || return 1
  wait_for 60 has_peers a 1 && wait_for 60 has_peers b 1 && answers a 10.192.2.1 && ! answers a 10.192.33.1
}
check "removal: a removed node is no peer any more" removal

crowd() {
  answers a 10.192.2.1 || return 1
  ping_start a 10.192.2.1
  BUN_BE_BUN=1 "$program" /payload/crowd.js "$curator" /data/curator "$crowd_size" add || return 1
  wait_for 60 has_peers a $((crowd_size + 1)) || return 1
  BUN_BE_BUN=1 "$program" /payload/crowd.js "$curator" /data/curator "$crowd_size" change remove || return 1
  wait_for 120 has_peers a 1 || return 1
  ping_stop 2000
}
echo "# a crowd of $crowd_size nodes"
check "many nodes come, change and go: 0 of at least 2,000 pings to another node are lost" crowd
note <"$result"

adoption() {
  local index
  index=$(index_of a)
  answers a 10.192.2.1 || return 1
  ping_start a 10.192.2.1
  wait_for 60 sent_at_least 600 || return 1
  kill -KILL "${agents[a]}"
  wait_for 60 sent_at_least 1200 || return 1
  # From here on nothing is put back but by the kernel's word.
  resync=600
  agent a 1
  wait_for 60 sh -c "$program status --data-dir /data/a --json | grep -q '\"ready\": *true'" || return 1
  ping_stop 3000 && [ "$(index_of a)" = "$index" ] && fault "agent killed with SIGKILL"
}
check "adoption: SIGKILL and a new start lose 0 of at least 3,000 pings and keep the interface" adoption
note <"$result"

repaired() {
  on a ip link show clusternet | grep -q 'mtu 1420 .*group 9 ' && has_peers a 1 &&
    on a ip route | grep -q '^10.192.0.0/11 dev clusternet proto 129' &&
    on a ip -6 route | grep -q '^fd10:c1::/32 dev clusternet proto 129' && answers a 10.192.2.1
}
# The time of day by that many seconds: all of the guest goes by it, WireGuard's handshakes too.
set_clock() { date -s "@$(($(date +%s) + $1))" >/dev/null; }
# By its log: how often agent a has found a Curator, and lost one.
found_curators() { grep -c 'Watching the nodes of a Curator' /tmp/a.log; }
lost_curators() { grep -c 'A watch stream ended' /tmp/a.log; }
is_more() { [ "$("$1")" -gt "$2" ]; }
is_connected() { on a "$program" status --data-dir /data/a | grep -q '^b  *connected'; }
clock() {
  local index seconds found lost
  index=$(index_of a) found=$(found_curators) lost=$(lost_curators)
  answers a 10.192.2.1 || return 1
  ping_start a 10.192.2.1
  wait_for 60 sent_at_least 200 || return 1
  # A session lasts three minutes: until then nobody begins one that would be refused.
  for seconds in 86400 -172800; do
    set_clock "$seconds"
    # The agent of a busy guest answers late, and is then not asked.
    wait_for 30 is_connected || { echo "peer b is not connected after a step of $seconds s"; return 1; }
  done
  # A wait that went by the time of day would now last a day longer.
  kill -KILL "$curator_process"
  wait "$curator_process"
  wait_for 20 is_more lost_curators "$lost" || return 1
  start_curator
  wait_for 30 is_more found_curators "$found" || return 1
  wait_for 20 grep -q 'time of day was set back' /tmp/a.log || return 1
  wait_for 30 is_connected || { echo "peer b is not connected when the step back was noticed"; return 1; }
  set_clock 86400
  ping_stop 400 && [ "$(index_of a)" = "$index" ]
}
check "a clock that is set forward and back by a day costs no ping, no session's age and no wait" clock
note <"$result"

deleted() { on a ip link del clusternet && wait_for 30 repaired; }
check "a deleted interface is back, whole" deleted

renamed() {
  on a ip link set clusternet down && on a ip link set clusternet name other && on a ip link set other up
  wait_for 30 repaired && ! on a ip link show other
}
check "a renamed interface has its name back" renamed

set_down() { on a ip link set clusternet down && wait_for 30 repaired; }
check "an interface that was set down is up, with its routes" set_down

# All of machine a that is wanted, and what is beside it, in one text.
# With bash: busybox' sh would run an `ip` of its own.
whole() {
  on a bash -c '
    ip -o link show clusternet | cut -d" " -f2-
    wg show clusternet public-key
    wg show clusternet listen-port
    wg show clusternet allowed-ips | tr "\t " "\n\n" | sort
    wg show clusternet persistent-keepalive
    ip -4 route show
    ip -6 route show | grep -v "^fe80"
    ip -o address show dev lo | tr -s " " | cut -d" " -f4 | sort'
}

is_whole() { [ "$(whole 2>/dev/null)" = "$wanted" ]; }

endpoints() { on a wg show clusternet endpoints; }

# drift NAME LIMIT COMMAND: it is made on machine a, and everything is as before within LIMIT seconds.
drift() {
  local started=$EPOCHREALTIME
  on a bash -c "$3" || return 1
  if ! wait_for "$2" is_whole; then
    echo "drift: $1"
    whole | diff <(echo "$wanted") -
    return 1
  fi
  fault "drift: $1" "$(awk -v a="$started" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.2f", b - a }')"
}

# Emulation makes ten seconds of the two that the agent has.
told=10

harmless_drifts() {
  local before
  on a ip address add 203.0.113.7/32 dev lo && on a ip address add 10.192.1.77/32 dev lo &&
    on a ip route add 198.51.101.0/24 dev eth0 proto 129 || return 1
  wanted=$(whole) before=$(endpoints)
  : >"$result"
  ping_start a 10.192.2.1
  drift "group changed" $told "ip link set clusternet group 3" &&
    drift "MTU changed" $told "ip link set clusternet mtu 1300" &&
    drift "MTU below 1280" $told "ip link set clusternet mtu 1200" &&
    drift "IPv6 route removed" $told "ip -6 route del fd10:c1::/32 dev clusternet" &&
    drift "source of the route removed" $told "ip route replace 10.192.0.0/11 dev clusternet proto 129" &&
    drift "guards removed" $told "ip route del unreachable 10.192.0.0/11; ip -6 route del unreachable fd10:c1::/32" &&
    drift "IPv6 loopback address removed" $told "ip address del fd10:c1:0:1::1/128 dev lo" || return 1
  ping_stop 1000 && fault "all of these" && [ "$(endpoints)" = "$before" ]
}
check "drifts that no packet needs are put back by the kernel's word: 0 of at least 1,000 pings lost" harmless_drifts
note <"$result"
: >"$result"

drifts() {
  drift "IPv4 route removed" $told "ip route del 10.192.0.0/11 dev clusternet" &&
    drift "IPv4 loopback address removed" $told "ip address del 10.192.1.1/32 dev lo" &&
    drift "lo set down and up" $told "ip link set lo down; ip link set lo up" && answers a 10.192.2.1
}
check "drifts that break the way are put back by the kernel's word" drifts

untold_drifts() {
  local peer foreign
  peer=$(key_of b) foreign=$(wg genkey | wg pubkey)
  (umask 077 && wg genkey >/tmp/other.key)
  kill -TERM "${agents[a]}"
  wait "${agents[a]}"
  resync=2
  agent a 1
  drift "port changed" 20 "wg set clusternet listen-port 7000" &&
    drift "key changed" 20 "wg set clusternet private-key /tmp/other.key" &&
    drift "allowed IPs of a peer edited" 20 "wg set clusternet peer $peer allowed-ips 10.192.2.0/25" &&
    drift "keepalive of a peer edited" 20 "wg set clusternet peer $peer persistent-keepalive 5" &&
    drift "peer removed" 20 "wg set clusternet peer $peer remove" &&
    drift "foreign peer added, which takes an allowed IP" 20 "wg set clusternet peer $foreign allowed-ips 10.192.2.0/24" &&
    wait_for 20 answers a 10.192.2.1 &&
    on a ip address del 203.0.113.7/32 dev lo && on a ip address del 10.192.1.77/32 dev lo &&
    on a ip route del 198.51.101.0/24 dev eth0 proto 129
}
check "drifts of which the kernel does not tell are put back by the next comparison" untold_drifts

stays() {
  local key
  key=$(key_of a)
  kill -TERM "${agents[a]}"
  wait "${agents[a]}" && repaired && on b wg show clusternet peers | grep -qxF "$key"
}
check "SIGTERM ends the agent with status 0 and the mesh stays" stays

down() {
  on a "$program" down --data-dir /data/a || return 1
  inventory a >/tmp/after
  diff /tmp/before /tmp/after && [ -s /data/a/private.key ] && [ -s /data/a/clusternet.conf ] &&
    on a "$program" down --data-dir /data/a
}
check "down takes away what is ours and nothing else, and a second one does no harm" down

port_taken() {
  on a ip link add hog type wireguard && on a wg set hog listen-port 7838 && on a ip link set hog up || return 1
  : >/tmp/a.log
  agent a 1
  wait_for 30 grep -q 7838 /tmp/a.log && kill -0 "${agents[a]}" &&
    on a ip link del hog && wait_for 60 repaired
}
check "a taken port is named, and the mesh comes up as soon as it is free" port_taken

kill "${agents[a]}" "${agents[b]}" "$curator_process"
for row in "${faults[@]}"; do echo "# fault $row"; done
check "the guest ran to its end" true
