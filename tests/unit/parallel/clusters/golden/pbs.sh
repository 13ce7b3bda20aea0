#!/usr/bin/env bash

#PBS -N dask-worker
#PBS -q gpu
#PBS -A my-lab
#PBS -l select=1:ncpus=4:mem=32gb:ngpus=1
#PBS -l walltime=04:00:00
#PBS -V
#PBS -r n
module load cuda
cd {folder}
export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}{clone}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
export MKL_NUM_THREADS=${MKL_NUM_THREADS:-4}
export OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-4}
export ESPNET3_JOB_GPUS=1
{python} -m espnet3.parallel.clusters.worker_main tls://{host}:{port} --name dummy-name --nthreads 4 --memory-limit 29.80GiB --nanny --death-timeout 120 --dashboard-address 127.0.0.1:0 --preload-nanny espnet3.parallel.clusters.worker_preload --preload espnet3.parallel.clusters.worker_preload --protocol tls:// --tls-ca-file {folder}/.espnet3-tls/certificate.pem --tls-cert {folder}/.espnet3-tls/certificate.pem --tls-key {folder}/.espnet3-tls/key.pem
