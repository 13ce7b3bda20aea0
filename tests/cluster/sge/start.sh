#!/bin/bash
# start.sh DIR PREFIX [NODES [GPUS]]: a real, private Grid Engine; needs root, no systemd.
#
# All state is below DIR, whose name may not have spaces. Grid Engine listens on all addresses and
# takes no host that is called localhost, so the head and each of its nodes are machines made by
# ../network/network.sh PREFIX, and clients run on the head, with the variables of DIR/env:
#   ../network/network.sh PREFIX exec 0 env $(cat DIR/env) qstat -f
#
# Queues are gpu.q, for an hour at most, and long.q, with 16 slots on each node, and GPUS of the
# consumable `gpu`; Grid Engine only counts these, and tells no job which GPU is its own. node.sh
# breaks and mends nodes; stop.sh DIR ends it all.
set -euo pipefail
dir=$1 prefix=$2 n_nodes=${3:-4} n_gpus=${4:-2}
here=$(dirname "$(readlink -f "$0")")
. "$here/../network/machine.sh"
resources=/usr/share/gridengine/util/resources
# Debian's commands in /usr/bin are scripts that look for these, for a while.
export PATH=/usr/lib/gridengine:$PATH

main() {
  mkdir -p "$dir"/{sge_root/default/common,spool/qmaster/job_scripts,spool/db,spool/execd,pids,log,conf}
  echo "$prefix" >"$dir/prefix"
  "$network" "$prefix" up "$n_nodes"
  cp "/etc/netns/${prefix}0/hosts" "$dir/hosts"
  make_root
  write_env >"$dir/env"
  # shellcheck disable=SC2046 # the words of this file have no spaces
  export $(cat "$dir/env")
  make_database >"$dir/log/database.out" 2>&1 || give_up "$(tail -n 1 "$dir/log/database.out")"
  start_machine head "SGE_ND=1 sge_qmaster"
  wait_for "the master does not answer" on_head qconf -sh
  configure >"$dir/log/configure.out" 2>&1 || give_up "$(tail -n 1 "$dir/log/configure.out")"
  for k in $(seq "$n_nodes"); do "$here/node.sh" "$dir" up "node$k"; done
  wait_for "not all nodes came up" nodes_are_up
}

make_root() {
  for folder in bin lib util utilbin; do ln -s "/var/lib/gridengine/$folder" "$dir/sge_root/$folder"; done
  echo head >"$dir/sge_root/default/common/act_qmaster"
  echo espnet3 >"$dir/sge_root/default/common/cluster_name"
  cat >"$dir/sge_root/default/common/bootstrap" <<CONF
admin_user              root
default_domain          none
ignore_fqdn             true
spooling_method         berkeleydb
spooling_lib            libspoolb
spooling_params         $dir/spool/db
binary_path             /usr/lib/gridengine
qmaster_spool_dir       $dir/spool/qmaster
security_mode           none
listener_threads        2
worker_threads          2
scheduler_threads       1
CONF
}

write_env() {
  echo "SGE_ROOT=$dir/sge_root"
  echo "SGE_CELL=default"
  echo "SGE_ARCH=$("$dir/sge_root/util/arch")"
  echo "SGE_QMASTER_PORT=6444"
  echo "SGE_EXECD_PORT=6445"
  # Nobody can count stand-in GPUs; as a user would, we say how many a node has.
  echo "ESPNET3_NODE_GPUS=$n_gpus"
}

make_database() {
  # Debian's own configuration, in which a lost node is noticed within seconds, and root has jobs.
  sed -e "s#^execd_spool_dir.*#execd_spool_dir $dir/spool/execd#" \
    -e 's/^load_report_time.*/load_report_time 00:00:02/' \
    -e 's/^max_unheard.*/max_unheard 00:00:10/' \
    -e 's/^reschedule_unknown.*/reschedule_unknown 00:00:10/' \
    -e 's/^min_\([ug]id\).*/min_\1 0/' \
    -e 's/^\(reporting_params.*\)/\1 accounting_flush_time=00:00:00/' \
    -e 's/^shell_start_mode.*/shell_start_mode unix_behavior/' \
    -e 's/^execd_params.*/execd_params ENABLE_ADDGRP_KILL=true/' \
    /usr/share/gridengine/default-configuration >"$dir/conf/global"
  on_head spoolinit berkeleydb libspoolb "$dir/spool/db" init
  on_head spooldefaults configuration "$dir/conf/global"
  on_head spooldefaults complexes $resources/centry
  on_head spooldefaults usersets $resources/usersets
  on_head spooldefaults managers root
}

configure() {
  set -e
  on_head qconf -as head
  { on_head qconf -sc && echo "gpu gpu INT <= YES YES 0 0"; } >"$dir/conf/complexes"
  on_head qconf -Mc "$dir/conf/complexes"
  # It looks for jobs to start every second, instead of every 15.
  on_head qconf -ssconf | sed -e 's/^schedule_interval.*/schedule_interval 0:0:1/' \
    -e 's/^\(flush_[a-z]*_sec\).*/\1 1/' >"$dir/conf/scheduler"
  on_head qconf -Msconf "$dir/conf/scheduler"
  on_head qconf -ah "$(seq -s , -f 'node%g' "$n_nodes")"
  # Jobs may submit jobs, as on most Grid Engines.
  on_head qconf -as "$(seq -s , -f 'node%g' "$n_nodes")"
  for k in $(seq "$n_nodes"); do add_node "node$k"; done
  echo "group_name @allhosts
hostlist $(seq -s ' ' -f 'node%g' "$n_nodes")" >"$dir/conf/hosts"
  on_head qconf -Ahgrp "$dir/conf/hosts"
  write_parallel_environment >"$dir/conf/smp"
  on_head qconf -Ap "$dir/conf/smp"
  add_queue gpu.q 01:00:00
  add_queue long.q INFINITY
}

add_node() {
  echo "hostname $1
complex_values gpu=$n_gpus" >"$dir/conf/$1"
  for key in load_scaling user_lists xuser_lists projects xprojects usage_scaling report_variables; do
    echo "$key NONE"
  done >>"$dir/conf/$1"
  on_head qconf -Ae "$dir/conf/$1"
}

write_parallel_environment() {
  cat <<'CONF'
pe_name            smp
slots              999
user_lists         NONE
xuser_lists        NONE
start_proc_args    NONE
stop_proc_args     NONE
allocation_rule    $pe_slots
control_slaves     TRUE
job_is_first_task  TRUE
urgency_slots      min
accounting_summary FALSE
qsort_args         NONE
CONF
}

# add_queue NAME WALLTIME
add_queue() {
  write_queue "$@" >"$dir/conf/$1"
  on_head qconf -Aq "$dir/conf/$1"
}

write_queue() {
  cat <<CONF
qname              $1
h_rt               $2
hostlist           @allhosts
seq_no             0
load_thresholds    NONE
suspend_thresholds NONE
nsuspend           1
suspend_interval   00:05:00
priority           0
min_cpu_interval   00:00:05
processors         UNDEFINED
qtype              BATCH INTERACTIVE
pe_list            smp
rerun              TRUE
slots              16
tmpdir             /tmp
shell              /bin/bash
shell_start_mode   unix_behavior
notify             00:00:10
initial_state      default
CONF
  for key in ckpt_list prolog epilog starter_method suspend_method resume_method terminate_method \
    owner_list user_lists xuser_lists subordinate_list complex_values projects xprojects calendar; do
    echo "$key NONE"
  done
  echo "s_rt INFINITY"
  for limit in cpu fsize data stack core rss vmem; do
    printf '%s_%s INFINITY\n' s "$limit" h "$limit"
  done
}

nodes_are_up() {
  local n_up
  n_up=$(on_head qstat -f | awk '/^gpu.q@/ && $4 != "-NA-" && $6 == ""' | wc -l)
  [ "$n_up" = "$n_nodes" ]
}

# wait_for WORDS COMMAND...
wait_for() {
  local words=$1
  shift
  for _ in $(seq 300); do
    "$@" >"$dir/log/wait.out" 2>&1 && return
    sleep 0.1
  done
  give_up "$words: $(tail -n 1 "$dir/log/wait.out")"
}

give_up() {
  echo "Grid Engine did not start: $1; more in $dir/log" >&2
  exit 1
}

main
