#!/usr/bin/env bash

#OAR -n espnet3
#OAR -q default
#OAR --project my-lab
#OAR -l /host=1/gpu=1,walltime=04:00:00
#OAR -a 12
module load cuda
export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}{clone}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
export MKL_NUM_THREADS=${MKL_NUM_THREADS:-4}
export OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-4}
export ESPNET3_JOB_GPUS=1
exec {python} -P -m espnet3.parallel.detached.work '/data/it'"'"'s a run' '/data/it'"'"'s a run/b' --env oar --generation 3 --submitted 1763300000.000 --walltime 14400 --trust alice --job "$OAR_JOB_ID"
