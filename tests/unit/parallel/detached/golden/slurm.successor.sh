#!/usr/bin/env bash

#SBATCH -J espnet3
#SBATCH -p gpu
#SBATCH -A my-lab
#SBATCH -n 1
#SBATCH --cpus-per-task=4
#SBATCH --mem=30G
#SBATCH -t 04:00:00
#SBATCH --gres=gpu:1
#SBATCH --no-requeue
#SBATCH --dependency=afterany:12
#SBATCH --exclude=n01,n02.cluster
module load cuda
export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}{clone}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
export MKL_NUM_THREADS=${MKL_NUM_THREADS:-4}
export OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-4}
exec {python} -P -m espnet3.parallel.detached.work '/data/it'"'"'s a run' '/data/it'"'"'s a run/b' --env slurm --generation 3 --submitted 1763300000.000 --walltime 14400 --trust alice --job "$SLURM_JOB_ID"
