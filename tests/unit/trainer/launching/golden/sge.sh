#!/bin/bash
#$ -N train_small
#$ -S /bin/bash
#$ -q gpu
#$ -P my-lab
#$ -pe mpi 64
#$ -l h_rt=24:00:00
#$ -l gpu=4
#$ -V
#$ -r y
#$ -j y
#$ -o /lab/asr/exp/train_small/launch/20240131-120000.scheduler.log

# Written by espnet3 launch; to submit it again: qsub /lab/asr/exp/train_small/launch/20240131-120000.sh
script=/lab/asr/exp/train_small/launch/20240131-120000.sh
state=/lab/asr/exp/train_small/launch/20240131-120000
python=/opt/venv/bin/python
arguments=(--training_config conf/training.yaml trainer.max_epochs=3)
# A restarted job resumes from last.ckpt, whatever the first one started from.
[ ! -f "$state.restarts" ] && [ "${SLURM_RESTART_COUNT:-0}" = 0 ] ||
  arguments+=(resume=auto fit.ckpt_path=null)

if [ "${1-}" = rank ]; then # one process of the training
  trap '' USR1 # else the training would die of it before it listens
  trap : TERM INT # wait for the training, which writes a checkpoint first
  left=$((ESPNET3_SIGNAL_AT - $(date +%s)))
  [ "$left" -gt 0 ] || left=1
  timeout --foreground --preserve-status --signal=USR1 "$left" "$python" run.py --stages train "${arguments[@]}"
  code=$?
  [ "$code" = 75 ] && : >"$state.continue" && exit 0
  # If several fail, the first has the reason; srun ends the others, torchrun returns 1.
  [ "$code" = 0 ] || (set -C; echo "$code" >"$state.failed") 2>/dev/null
  exit "$code"
fi

[ -n "${1-}" ] || exec >>/lab/asr/exp/train_small/launch/20240131-120000.log 2>&1
cd /lab/asr || exit 1
export OMP_NUM_THREADS=4
export PYTHONUNBUFFERED=1
export NCCL_DEBUG=INFO
module load cuda

if [ "${1-}" = node ]; then # all processes of one node
  trap '' USR1 # torchrun would die of it, and all its processes with it
  export ESPNET3_SIGNAL_AT="$3"
  exec "$python" -m torch.distributed.run --nnodes=2 --nproc-per-node=4 \
    --rdzv-backend=c10d --rdzv-endpoint="$2" --rdzv-id="$2" --no-python bash "$script" rank
fi

trap : TERM # as above
rm -f "$state.continue" "$state.failed"
export ESPNET3_SIGNAL_AT=$(($(date +%s) + 86280))
mapfile -t hosts < <(awk '!seen[$1]++ {print $1}' "$PE_HOSTFILE")
if [ "${#hosts[@]}" != 2 ]; then
  echo "espnet3: trainer.num_nodes is 2, but the number of nodes of the job is ${#hosts[@]}: ${hosts[*]}" >&2
  exit 1
fi
remote() { qrsh -inherit -V -nostdin "$@"; }
endpoint=${hosts[0]}:$((20000 + JOB_ID % 20000))
command=(bash "$script" node "$endpoint" "${ESPNET3_SIGNAL_AT-}")
"${command[@]}" &
processes=($!)
for host in "${hosts[@]:1}"; do
  remote "$host" "${command[@]}" </dev/null &
  processes+=($!)
done
code=0
for process in "${processes[@]}"; do
  wait "$process"; status=$?
  while kill -0 "$process" 2>/dev/null; do wait "$process"; status=$?; done # after TERM
  [ "$code" != 0 ] || code=$status
done
[ "$code" = 0 ] || [ ! -s "$state.failed" ] || code=$(cat "$state.failed")

if [ -f "$state.continue" ] || [ "$code" = 75 ]; then
  n=$(($(cat "$state.restarts" 2>/dev/null || echo 0) + 1))
  if [ "$n" -gt 10 ]; then
    echo 0 >"$state.restarts" # a new submission starts counting again
    echo 'espnet3: time is up, and the job was restarted 10 times, which is launch.max_restarts. A checkpoint is written; to continue: qsub /lab/asr/exp/train_small/launch/20240131-120000.sh' >&2
    exit 75
  fi
  echo "$n" >"$state.restarts" || exit 75 # else it would never end
  echo "espnet3: walltime reached; restart $n of 10 resumes from the checkpoint"
  exit 99 # SGE then queues it again
fi
[ "$code" != 0 ] || rm -f "$state.restarts"

exit "$code"
