#!/bin/bash
# node.sh DIR VERB NODE: break and mend a node of the Slurm that start.sh DIR started.
#
#   kill         all its processes die at once, as if it had lost power
#   kill-daemon  only its slurmd dies; jobs go on, though Slurm believes them lost
#   up           start what was killed
#   drain        no new jobs; those that run may end
#   resume       take jobs again
#   fill         leave no space on its scratch disk, DIR/scratch
#   free         undo that
set -euo pipefail
dir=$1 verb=$2 node=$3
prefix=$(cat "$dir/prefix")
. "$(dirname "$(readlink -f "$0")")/../network/machine.sh"
export SLURM_CONF=$dir/slurm.conf
# Under this name: as Debian's slurmd-wlm it would ignore every Gres= without a word.
slurmd="slurmd -D -N $node -f $SLURM_CONF"

up() {
  if [ -z "$(machine_pid "$node")" ]; then
    start_machine "$node" "$slurmd"
  else
    on_machine "$node" setsid $slurmd >>"$dir/log/$node.out" 2>&1 </dev/null &
  fi
}

kill_daemon() {
  for _ in $(seq 100); do
    # The file has the id that the process has on its machine, or soon will have.
    on_machine "$node" kill -KILL "$(cat "$dir/pids/.$node")" 2>/dev/null && return
    sleep 0.1
  done
  echo "node.sh: $node has no daemon" >&2
  return 1
}

case $verb in
  kill) end_machine "$node" ;;
  kill-daemon) kill_daemon ;;
  up) up ;;
  drain) on_head scontrol update "NodeName=$node" State=DRAIN Reason=test ;;
  resume) on_head scontrol update "NodeName=$node" State=RESUME ;;
  fill) fill_scratch "$node" ;;
  free) free_scratch "$node" ;;
  *) echo "node.sh: no verb '$verb'" >&2; exit 2 ;;
esac
