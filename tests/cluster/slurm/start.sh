#!/bin/bash
# start.sh DIR PORT [NODES [GPUS]]: a real, private Slurm on this machine; needs root, no systemd.
#
# Clients need SLURM_CONF=DIR/slurm.conf. All state is below DIR, whose name may not have spaces.
# PORT and the NODES ports after it must be free; all listen on 127.0.0.1 only. End it with
# stop.sh DIR.
#
# Each node is a slurmd with its own host name, /etc/hosts and process namespace: `hostname` in a
# job is node1, and when the process in DIR/pids/node1 is killed, all of the node's processes die
# with it, as if it had lost power. Each has 16 CPUs and GPUS stand-in GPUs, which Slurm hands out
# by CUDA_VISIBLE_DEVICES like real ones.
set -euo pipefail
dir=$1 port=$2 n_nodes=${3:-4} n_gpus=${4:-2}
export SLURM_CONF=$dir/slurm.conf
host=$(hostname -s)

main() {
  mkdir -p "$dir"/{pids,log,state,spool,dev,munge}
  chmod 700 "$dir/munge"
  write_hosts >"$dir/hosts"
  write_slurm_conf >"$dir/slurm.conf"
  make_gpus >"$dir/gres.conf"
  start_munged
  start_daemon slurmctld "$host" "exec slurmctld -D -c -f $SLURM_CONF"
  for k in $(seq "$n_nodes"); do
    # The shell stays as the namespace's first process and reaps what jobs leave behind.
    start_daemon "node$k" "node$k" "slurmd -D -N node$k -f $SLURM_CONF & wait"
  done
  wait_for_nodes
}

write_hosts() {
  echo "127.0.0.1 localhost $host"
  for k in $(seq "$n_nodes"); do echo "127.0.0.1 node$k"; done
}

write_slurm_conf() {
  cat <<CONF
ClusterName=espnet3
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
SlurmctldPidFile=$dir/pids/.slurmctld
SlurmdPidFile=$dir/pids/.%n
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.%n.log
# Not 0.0.0.0: keeps everything on loopback.
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
# No cgroups and no binding, so that two cores may pass for any number of CPUs.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
MpiDefault=none
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$dir/log/jobcomp.log
EnforcePartLimits=ALL
# Schedule, notice failures and clean up within seconds.
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2,sched_min_interval=0
SlurmdTimeout=10
KillWait=3
MinJobAge=300
ReturnToService=2
UnkillableStepTimeout=15
CONF
  # One address and many ports: with 127.0.10.K per node, an srun inside a job would hang.
  for k in $(seq "$n_nodes"); do
    echo "NodeName=node$k NodeHostname=node$k NodeAddr=127.0.0.1 Port=$((port + k)) CPUs=16" \
      "Boards=1 SocketsPerBoard=1 CoresPerSocket=16 ThreadsPerCore=1 RealMemory=16000" \
      "Gres=gpu:$n_gpus State=UNKNOWN"
  done
  echo "PartitionName=cpu Nodes=ALL Default=YES MaxTime=60 DefaultTime=10 State=UP"
  echo "PartitionName=gpu Nodes=ALL MaxTime=60 DefaultTime=10 State=UP"
}

make_gpus() {
  # The device number of /dev/null: harmless, and all that Slurm asks of a GPU.
  for gpu in $(seq 0 $((n_gpus - 1))); do mknod -m 666 "$dir/dev/nvidia$gpu" c 1 3; done
  echo "AutoDetect=off"
  for k in $(seq "$n_nodes"); do
    echo "NodeName=node$k Name=gpu File=$dir/dev/nvidia[0-$((n_gpus - 1))]"
  done
}

start_munged() {
  (umask 077 && head -c 128 /dev/urandom >"$dir/munge/key")
  setsid munged --foreground --force --num-threads=2 --key-file="$dir/munge/key" \
    --socket="$dir/munge.socket" --pid-file="$dir/pids/.munged" \
    --log-file="$dir/log/munged.log" --seed-file="$dir/munge/seed" \
    >"$dir/log/munged.out" 2>&1 </dev/null &
  echo $! >"$dir/pids/munged"
  for _ in $(seq 100); do
    [ -S "$dir/munge.socket" ] && return
    sleep 0.05
  done
  give_up "munged made no socket"
}

# start_daemon NAME HOSTNAME COMMAND. Daemons must be called slurmctld and slurmd, not Debian's
# slurmctld-wlm and slurmd-wlm: under other names they ignore every Gres= without a word.
start_daemon() {
  # In a session of its own, which Ctrl-C in a test does not reach.
  setsid unshare --mount --uts --pid --fork --kill-child --mount-proc sh -c \
    "hostname $2 && mount --bind $dir/hosts /etc/hosts && $3" \
    >"$dir/log/$1.out" 2>&1 </dev/null &
  echo $! >"$dir/pids/$1"
}

wait_for_nodes() {
  local n_idle
  for _ in $(seq 300); do
    n_idle=$(timeout 5 sinfo -h -N -p cpu -t idle -o %N 2>/dev/null | sort -u | wc -l) || n_idle=0
    [ "$n_idle" = "$n_nodes" ] && return
    sleep 0.1
  done
  give_up "only $n_idle of $n_nodes nodes came up"
}

give_up() {
  echo "Slurm did not start: $1; the last errors in $dir/log:" >&2
  grep -h error "$dir"/log/* | tail -n 8 >&2 || true
  exit 1
}

main
