#!/bin/bash
# start.sh DIR PREFIX: a real HTCondor pool of one machine, in the Debian that setup.sh made.
#
# The machine is the head of ../network/network.sh PREFIX, with 8 CPUs and 4 stand-in GPUs, and all
# state is below DIR, whose name may not have spaces. HTCondor runs no jobs of root, so all of it,
# clients and drivers too, runs as the user `jobs`, to whom DIR belongs:
#   enter.sh DIR COMMAND...
# stop.sh DIR ends it all.
set -euo pipefail
dir=$1 prefix=$2
here=$(dirname "$(readlink -f "$0")")
root=${ESPNET3_HTCONDOR:-/var/lib/espnet3-htcondor}
network=$here/../network/network.sh

main() {
  mkdir -p "$dir"/{log,spool,execute,lock,run,pids}
  echo "$prefix" >"$dir/prefix"
  echo "$root" >"$dir/root"
  "$network" "$prefix" up 1
  write_config >"$dir/condor_config"
  chown -R "$(chroot "$root" id -u jobs):$(chroot "$root" id -g jobs)" "$dir"
  setsid "$here/enter.sh" "$dir" condor_master -f >"$dir/log/master.out" 2>&1 </dev/null &
  for _ in $(seq 300); do
    "$here/enter.sh" "$dir" condor_status -af Name 2>/dev/null | grep -q . &&
      "$here/enter.sh" "$dir" condor_q >/dev/null 2>&1 && return
    sleep 0.2
  done
  echo "HTCondor did not start; see $dir/log" >&2
  exit 1
}

write_config() {
  cat <<CONF
CONDOR_HOST = head
COLLECTOR_HOST = head:9618
DAEMON_LIST = MASTER COLLECTOR NEGOTIATOR SCHEDD STARTD
RELEASE_DIR = /usr
LIB = /usr/lib/condor
BIN = /usr/bin
SBIN = /usr/sbin
LIBEXEC = /usr/libexec/condor
LOCAL_DIR = $dir
LOG = $dir/log
SPOOL = $dir/spool
EXECUTE = $dir/execute
LOCK = $dir/lock
RUN = $dir/run
NETWORK_INTERFACE = $("$network" "$prefix" address 0)
ENABLE_IPV6 = False
# Nobody else is in this network.
SEC_DEFAULT_AUTHENTICATION = OPTIONAL
SEC_DEFAULT_AUTHENTICATION_METHODS = FS, CLAIMTOBE
SEC_DEFAULT_ENCRYPTION = OPTIONAL
SEC_DEFAULT_INTEGRITY = OPTIONAL
ALLOW_READ = *
ALLOW_WRITE = *
ALLOW_DAEMON = *
ALLOW_NEGOTIATOR = *
ALLOW_ADMINISTRATOR = *
ALLOW_ADVERTISE_MASTER = *
ALLOW_ADVERTISE_SCHEDD = *
ALLOW_ADVERTISE_STARTD = *
UID_DOMAIN = head
FILESYSTEM_DOMAIN = head
TRUST_UID_DOMAIN = True
# More than the machine has, to be cut as jobs ask for it.
NUM_CPUS = 8
MEMORY = 16000
NUM_SLOTS = 1
NUM_SLOTS_TYPE_1 = 1
SLOT_TYPE_1 = 100%
SLOT_TYPE_1_PARTITIONABLE = True
MACHINE_RESOURCE_GPUs = CUDA0 CUDA1 CUDA2 CUDA3
START = True
SUSPEND = False
PREEMPT = False
KILL = False
WANT_SUSPEND = False
WANT_VACATE = False
RANK = 0
# Start jobs, and notice what became of them, within seconds.
NEGOTIATOR_INTERVAL = 2
NEGOTIATOR_MIN_INTERVAL = 1
NEGOTIATOR_CYCLE_DELAY = 1
SCHEDD_INTERVAL = 5
SCHEDD_MIN_INTERVAL = 1
UPDATE_INTERVAL = 5
STARTER_UPDATE_INTERVAL = 5
JOB_START_DELAY = 0
JOB_START_COUNT = 10
CLAIM_WORKLIFE = 0
PERIODIC_EXPR_INTERVAL = 5
USE_PID_NAMESPACES = False
DISCARD_SESSION_KEYRING_ON_STARTUP = False
CONF
}

main
