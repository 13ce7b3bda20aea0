#!/bin/bash
#SBATCH --job-name=train_small
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --gres=gpu:2
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output="/lab/it's \"my\" 100%% folder/exp/train_small/launch/20240131-120000.log"

# Written by espnet3 launch; to submit it again: sbatch '/lab/it'"'"'s "my" 100% folder/exp/train_small/launch/20240131-120000.sh'
script='/lab/it'"'"'s "my" 100% folder/exp/train_small/launch/20240131-120000.sh'
state='/lab/it'"'"'s "my" 100% folder/exp/train_small/launch/20240131-120000'
python=/opt/venv/bin/python
arguments=(--training_config conf/training.yaml trainer.max_epochs=3)
# A restarted job resumes from last.ckpt, whatever the first one started from.
[ ! -f "$state.restarts" ] && [ "${SLURM_RESTART_COUNT:-0}" = 0 ] ||
  arguments+=(resume=auto fit.ckpt_path=null)

if [ "${1-}" = rank ]; then # one process of the training
  trap '' USR1 # else the training would die of it before it listens
  trap : TERM INT # wait for the training, which writes a checkpoint first
  "$python" run.py --stages train "${arguments[@]}"
  code=$?
  [ "$code" = 75 ] && : >"$state.continue" && exit 0
  # If several fail, the first has the reason; srun ends the others, torchrun returns 1.
  [ "$code" = 0 ] || (set -C; echo "$code" >"$state.failed") 2>/dev/null
  exit "$code"
fi

cd '/lab/it'"'"'s "my" 100% folder' || exit 1
export OMP_NUM_THREADS=4
export PYTHONUNBUFFERED=1

trap : TERM # as above
rm -f "$state.continue" "$state.failed"
srun --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --kill-on-bad-exit=1 \
  bash "$script" rank
code=$?
[ "$code" = 0 ] || [ ! -s "$state.failed" ] || code=$(cat "$state.failed")

if [ -f "$state.continue" ] || [ "$code" = 75 ]; then
  n=$(($(cat "$state.restarts" 2>/dev/null || echo 0) + 1))
  if [ "$n" -gt 10 ]; then
    echo 0 >"$state.restarts" # a new submission starts counting again
    echo 'espnet3: time is up, and the job was restarted 10 times, which is launch.max_restarts. A checkpoint is written; to continue: sbatch '"'"'/lab/it'"'"'"'"'"'"'"'"'s "my" 100% folder/exp/train_small/launch/20240131-120000.sh'"'"'' >&2
    exit 75
  fi
  echo "$n" >"$state.restarts" || exit 75 # else it would never end
  echo "espnet3: walltime reached; restart $n of 10 resumes from the checkpoint"
  scontrol requeue "$SLURM_JOB_ID" && exit 0
  sbatch "$script" && exit 0 # where requeueing is forbidden
  echo 'espnet3: the job could not be requeued. To resume from the checkpoint: sbatch '"'"'/lab/it'"'"'"'"'"'"'"'"'s "my" 100% folder/exp/train_small/launch/20240131-120000.sh'"'"'' >&2
  exit 75
fi
[ "$code" != 0 ] || rm -f "$state.restarts"

exit "$code"
