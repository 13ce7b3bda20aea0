#!/usr/bin/env bash

#BSUB -J espnet3
#BSUB -q gpu
#BSUB -P "my-lab"
#BSUB -n 4
#BSUB -R "span[hosts=1]"
#BSUB -M 32000000
#BSUB -W 04:00
#BSUB -gpu "num=1:mode=exclusive_process"
#BSUB -w "ended(12)"
#BSUB -R "select[hname!='n01' && hname!='n02.cluster']"
module load cuda
export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}{clone}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
export MKL_NUM_THREADS=${MKL_NUM_THREADS:-4}
export OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-4}
exec {python} -P -m espnet3.parallel.detached.work '/data/it'"'"'s a run' '/data/it'"'"'s a run/b' --env lsf --generation 3 --submitted 1763300000.000 --walltime 14400 --trust alice --job "$LSB_JOBID"
