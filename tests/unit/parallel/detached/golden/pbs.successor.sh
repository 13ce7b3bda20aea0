#!/usr/bin/env bash

#PBS -N espnet3
#PBS -q gpu
#PBS -A my-lab
#PBS -l select=1:ncpus=4:mem=32gb:ngpus=1
#PBS -l walltime=04:00:00
#PBS -V
#PBS -r n
#PBS -W depend=afterany:12
module load cuda
cd {folder}
export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}{clone}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
export MKL_NUM_THREADS=${MKL_NUM_THREADS:-4}
export OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-4}
export ESPNET3_JOB_GPUS=1
exec {python} -P -m espnet3.parallel.detached.work '/data/it'"'"'s a run' '/data/it'"'"'s a run/b' --env pbs --generation 3 --submitted 1763300000.000 --walltime 14400 --trust alice --job "${PBS_JOBID%%.*}"
