#!/bin/bash
# node.sh DIR VERB NODE: break and mend a node of the Grid Engine that start.sh DIR started.
#
#   kill         all its processes die at once, as if it had lost power
#   kill-daemon  only its sge_execd dies; jobs go on
#   up           start what was killed
#   drain        no new jobs; those that run may end
#   resume       take jobs again
#   fill         leave no space on its scratch disk, DIR/scratch
#   free         undo that
set -euo pipefail
dir=$1 verb=$2 node=$3
prefix=$(cat "$dir/prefix")
. "$(dirname "$(readlink -f "$0")")/../network/machine.sh"
# shellcheck disable=SC2046 # the words of this file have no spaces
export $(cat "$dir/env")
execd=/usr/lib/gridengine/sge_execd

up() {
  if [ -z "$(machine_pid "$node")" ]; then
    start_machine "$node" "SGE_ND=1 $execd"
  else
    on_machine "$node" env SGE_ND=1 setsid $execd >>"$dir/log/$node.out" 2>&1 </dev/null &
  fi
}

kill_daemon() {
  for _ in $(seq 100); do
    # The file has the id that the process has on its machine, or soon will have.
    on_machine "$node" kill -KILL "$(cat "$dir/spool/execd/$node/execd.pid")" 2>/dev/null && return
    sleep 0.1
  done
  echo "node.sh: $node has no daemon" >&2
  return 1
}

case $verb in
  kill) end_machine "$node" ;;
  kill-daemon) kill_daemon ;;
  up) up ;;
  drain) on_head qmod -d "*@$node" >/dev/null ;;
  resume) on_head qmod -e "*@$node" >/dev/null ;;
  fill) fill_scratch "$node" ;;
  free) free_scratch "$node" ;;
  *) echo "node.sh: no verb '$verb'" >&2; exit 2 ;;
esac
