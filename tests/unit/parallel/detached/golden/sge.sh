#!/usr/bin/env bash

#$ -N espnet3
#$ -q gpu.q
#$ -P my-lab
#$ -l h_vmem=8G,gpu=1
#$ -l h_rt=04:00:00
#$ -cwd
#$ -j y
#$ -pe smp 4
#$ -V
#$ -r n
module load cuda
export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}{clone}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
export MKL_NUM_THREADS=${MKL_NUM_THREADS:-4}
export OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-4}
export ESPNET3_JOB_GPUS=1
exec {python} -P -m espnet3.parallel.detached.work '/data/it'"'"'s a run' --env sge --generation 0 --submitted 0.000 --walltime 14400 --job "$JOB_ID"
