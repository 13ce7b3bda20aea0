# Functions for a daemon on a machine of its own; to be sourced, with $dir set to the folder of the
# scheduler, $dir/hosts written, and $prefix to that of network.sh, or empty for this machine's own
# network.
#
# A machine is a process namespace with a host name and an /etc/hosts. When its first process is
# killed, all others die with it, as if it had lost power. Machines share all files but the locks
# of GPUs, which those of different schedulers, that are called the same, must not take for theirs,
# and $dir/scratch, a small disk of each machine's own.

locks=/tmp/espnet3-gpus-$(id -u)

# start_machine NAME COMMAND
start_machine() {
  local net=()
  # Not `ip netns exec`: it hides the control groups, without which slurmd does not start.
  [ -z "$prefix" ] || net=(nsenter "--net=/run/netns/$prefix$(machine_number "$1")")
  mkdir -m 700 -p "$dir/gpus" "$locks"
  mkdir -p "$dir/scratch"
  # In a session of its own, which Ctrl-C in a test does not reach. The shell stays as the first
  # process, even without its daemon, and reaps what jobs leave behind.
  setsid "${net[@]}" unshare --mount --uts --pid --fork --kill-child --mount-proc sh -c \
    "hostname $1 && mount --bind $dir/hosts /etc/hosts && mount --bind $dir/gpus $locks &&
     mount -t tmpfs -o size=4m,mode=1777 scratch $dir/scratch &&
     { sleep infinity & $2 & wait; }" \
    >"$dir/log/$1.out" 2>&1 </dev/null &
  echo $! >"$dir/pids/$1"
}

machine_number() { if [[ $1 == node* ]]; then echo "${1#node}"; else echo 0; fi; }

# machine_pid NAME: print the id of its outermost process, if it runs.
machine_pid() {
  local pid
  pid=$(cat "$dir/pids/$1" 2>/dev/null) || return 0
  # An id may be used again; only a process that knows this folder is ours.
  if tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline" | grep -qF "$dir/"; then echo "$pid"; fi
}

# on_machine NAME COMMAND...: run a command among the processes of a machine.
on_machine() {
  local first
  first=$(pgrep -P "$(machine_pid "$1")")
  shift
  nsenter --target "$first" --mount --uts --pid --net "$@"
}

# fill_scratch NAME: leave not a byte on the disk of a machine; free_scratch NAME undoes it.
fill_scratch() { on_machine "$1" sh -c "cat /dev/zero >$dir/scratch/full" 2>/dev/null || true; }
free_scratch() { on_machine "$1" rm -f "$dir/scratch/full"; }

# end_machine NAME
end_machine() {
  local pid
  pid=$(machine_pid "$1")
  [ -z "$pid" ] || kill -KILL "$pid"
  rm -f "$dir/pids/$1"
}

# on_head COMMAND...: run a command where clients of the scheduler run.
on_head() {
  if [ -z "$prefix" ]; then "$@"; else "$network" "$prefix" exec 0 "$@"; fi
}

network=$(dirname "${BASH_SOURCE[0]}")/network.sh
