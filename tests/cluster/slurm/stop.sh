#!/bin/bash
# stop.sh DIR: end the Slurm that start.sh DIR started, with all its jobs, and nothing else.
set -uo pipefail
dir=$1

# Killing a node's first process ends its process namespace, so no job can stay behind.
for name in slurmctld $(cd "$dir/pids" && ls | grep -x 'node[0-9]*') munged; do
  [ -s "$dir/pids/$name" ] || continue
  pid=$(cat "$dir/pids/$name")
  # A pid may be used again; only a process that knows this folder is ours.
  if tr '\0' '\n' <"/proc/$pid/cmdline" | grep -qF "$dir/"; then kill -KILL "$pid"; fi
  rm -f "$dir/pids/$name"
done
