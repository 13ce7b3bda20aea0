#!/bin/bash
# network.sh PREFIX VERB ...: several machines with cables between them, as network namespaces.
#
#   up N           make the head, PREFIX0, and N nodes, PREFIX1 to PREFIXN; needs root
#   exec K CMD...  run a command on machine K (0 is the head), with its name and addresses
#   address K      print the address of a machine
#   cut K, heal K  pull the cable of a node, and put it back
#   down           end every process on these machines, and remove them
#
# Inside they are called head and node1 to nodeN, and each has one interface, ib0, beside lo. There
# is no way out, and machines of different prefixes do not see each other. `up` begins with `down`,
# so that what a killed session left behind is gone.
set -euo pipefail
prefix=$1 verb=$2
shift 2
[[ $prefix =~ ^[a-z]([a-z0-9]{0,8}[a-z])?$ ]] ||
  { echo "network.sh: '$prefix' is no prefix: at most 10 letters, ending in one" >&2; exit 2; }
# Not needed to keep prefixes apart; but logs are easier to read.
subnet=10.$((128 + $(printf %s "$prefix" | cksum | cut -d ' ' -f 1) % 120)).0

address() { if [ "$1" = 0 ]; then echo "$subnet.1"; else echo "$subnet.$((10 + $1))"; fi; }

name() { if [ "$1" = 0 ]; then echo head; else echo "node$1"; fi; }

machines() { ip netns list | cut -d ' ' -f 1 | grep -x "$prefix[0-9]*" || true; }

up() {
  down
  local n_nodes=$1 k
  add_machine 0 "$n_nodes"
  ip -n "${prefix}0" link add ib0 type bridge
  plug_in 0
  for k in $(seq "$n_nodes"); do
    add_machine "$k" "$n_nodes"
    ip -n "${prefix}0" link add "v$k" type veth peer name ib0 netns "$prefix$k"
    ip -n "${prefix}0" link set "v$k" master ib0 up
    plug_in "$k"
  done
}

add_machine() {
  local etc=/etc/netns/$prefix$1 k
  # `ip netns exec` puts these in place of the files of /etc.
  mkdir -p "$etc"
  echo "127.0.0.1 localhost" >"$etc/hosts"
  for k in $(seq 0 "$2"); do echo "$(address "$k") $(name "$k")"; done >>"$etc/hosts"
  : >"$etc/resolv.conf"
  ip netns add "$prefix$1"
  ip -n "$prefix$1" link set lo up
}

plug_in() {
  ip -n "$prefix$1" addr add "$(address "$1")/24" dev ib0
  ip -n "$prefix$1" link set ib0 up
}

down() {
  local machine pid
  for machine in $(machines); do
    for pid in $(ip netns pids "$machine"); do kill -KILL "$pid" 2>/dev/null || true; done
    ip netns del "$machine"
    rm -rf "/etc/netns/$machine"
  done
}

run() {
  local k=$1
  shift
  # With exec throughout: a signal to this process is one to the command.
  exec ip netns exec "$prefix$k" unshare --uts sh -c 'hostname "$0" && exec "$@"' "$(name "$k")" "$@"
}

case $verb in
  up) up "$1" ;;
  exec) run "$@" ;;
  address) address "$1" ;;
  cut) ip -n "${prefix}0" link set "v$1" down ;;
  heal) ip -n "${prefix}0" link set "v$1" up ;;
  down) down ;;
  *) echo "network.sh: no verb '$verb'" >&2; exit 2 ;;
esac
