#!/bin/bash
# start.sh DIR PORT [NODES [GPUS [PREFIX [MEMORY]]]]: a real, private Slurm; needs root, no systemd.
#
# Clients need SLURM_CONF=DIR/slurm.conf. All state is below DIR, whose name may not have spaces.
# PORT and the NODES ports after it must be free. Each node is a slurmd on a "machine" of its own
# (see ../network/machine.sh): `hostname` in a job is node1. Each has 16 CPUs and GPUS stand-in
# GPUs, which Slurm hands out by CUDA_VISIBLE_DEVICES like real ones.
#
# Without PREFIX all listen on 127.0.0.1 only, and clients run anywhere. With it, each has a network
# of its own, made by ../network/network.sh, and clients run on the head:
#   ../network/network.sh PREFIX exec 0 env SLURM_CONF=DIR/slurm.conf squeue
#
# With MEMORY=strict, jobs that take more memory than they asked for are killed within seconds.
#
# node.sh breaks and mends nodes; stop.sh DIR ends it all.
set -euo pipefail
dir=$1 port=$2 n_nodes=${3:-4} n_gpus=${4:-2} prefix=${5:-} memory=${6:-}
here=$(dirname "$(readlink -f "$0")")
. "$here/../network/machine.sh"
export SLURM_CONF=$dir/slurm.conf

main() {
  mkdir -p "$dir"/{pids,log,state,spool,dev,munge}
  chmod 700 "$dir/munge"
  echo "$prefix" >"$dir/prefix"
  [ -z "$prefix" ] || "$network" "$prefix" up "$n_nodes"
  write_hosts >"$dir/hosts"
  write_slurm_conf >"$dir/slurm.conf"
  make_gpus >"$dir/gres.conf"
  start_munged
  # Under this name: as Debian's slurmctld-wlm it would ignore every Gres= without a word.
  start_machine head "slurmctld -D -c -f $SLURM_CONF"
  for k in $(seq "$n_nodes"); do "$here/node.sh" "$dir" up "node$k"; done
  wait_for_nodes
}

address() { if [ -z "$prefix" ]; then echo 127.0.0.1; else "$network" "$prefix" address "$1"; fi; }

write_hosts() {
  echo "127.0.0.1 localhost $([ -n "$prefix" ] || hostname -s)"
  echo "$(address 0) head"
  for k in $(seq "$n_nodes"); do echo "$(address "$k") node$k"; done
}

write_slurm_conf() {
  cat <<CONF
ClusterName=espnet3
SlurmctldHost=head($(address 0))
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
# Not 0.0.0.0: without PREFIX, this keeps everything on loopback.
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
# No cgroups and no binding, so that two cores may pass for any number of CPUs.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
$(write_memory)
SlurmdParameters=config_overrides
SelectType=select/cons_tres
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
TCPTimeout=2
KillWait=3
MinJobAge=300
ReturnToService=2
UnkillableStepTimeout=15
CONF
  # One address and many ports: with 127.0.10.K per node, an srun inside a job would hang.
  for k in $(seq "$n_nodes"); do
    echo "NodeName=node$k NodeHostname=node$k NodeAddr=$(address "$k") Port=$((port + k)) CPUs=16" \
      "Boards=1 SocketsPerBoard=1 CoresPerSocket=16 ThreadsPerCore=1 RealMemory=64000" \
      "Gres=gpu:$n_gpus State=UNKNOWN"
  done
  echo "PartitionName=cpu Nodes=ALL Default=YES MaxTime=60 DefaultTime=10 State=UP"
  echo "PartitionName=gpu Nodes=ALL MaxTime=60 DefaultTime=10 State=UP"
  echo "PartitionName=spread Nodes=ALL MaxTime=60 DefaultTime=10 LLN=YES State=UP"
  echo "PartitionName=long Nodes=ALL MaxTime=INFINITE DefaultTime=10 State=UP"
}

write_memory() {
  if [ "$memory" = strict ]; then
    echo "SelectTypeParameters=CR_Core_Memory"
    echo "DefMemPerCPU=1000"
    echo "JobAcctGatherType=jobacct_gather/linux"
    echo "JobAcctGatherFrequency=1"
    echo "JobAcctGatherParams=OverMemoryKill"
  else
    echo "SelectTypeParameters=CR_Core"
    echo "JobAcctGatherType=jobacct_gather/none"
  fi
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

wait_for_nodes() {
  local n_idle
  for _ in $(seq 300); do
    n_idle=$(on_head timeout 5 sinfo -h -N -p cpu -t idle -o %N 2>/dev/null | sort -u | wc -l) ||
      n_idle=0
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
