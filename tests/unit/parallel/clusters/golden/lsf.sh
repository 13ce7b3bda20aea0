#!/usr/bin/env bash

#BSUB -J dask-worker
#BSUB -q gpu
#BSUB -P "my-lab"
#BSUB -n 4
#BSUB -R "span[hosts=1]"
#BSUB -M 32000000
#BSUB -W 04:00
#BSUB -gpu "num=1:mode=exclusive_process"
module load cuda
export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}{clone}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
export MKL_NUM_THREADS=${MKL_NUM_THREADS:-4}
export OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-4}
{python} -m espnet3.parallel.clusters.worker_main tls://{host}:{port} --name dummy-name --nthreads 4 --memory-limit 29.80GiB --nanny --death-timeout 120 --dashboard-address 127.0.0.1:0 --preload-nanny espnet3.parallel.clusters.worker_preload --preload espnet3.parallel.clusters.worker_preload --protocol tls:// --tls-ca-file {folder}/.espnet3-tls/certificate.pem --tls-cert {folder}/.espnet3-tls/certificate.pem --tls-key {folder}/.espnet3-tls/key.pem
