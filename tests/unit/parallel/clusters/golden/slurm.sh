#!/usr/bin/env bash

#SBATCH -J dask-worker
#SBATCH -p gpu
#SBATCH -A my-lab
#SBATCH -n 1
#SBATCH --cpus-per-task=4
#SBATCH --mem=30G
#SBATCH -t 04:00:00
#SBATCH --gres=gpu:1
#SBATCH --no-requeue
module load cuda
export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}{clone}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
export MKL_NUM_THREADS=${MKL_NUM_THREADS:-4}
export OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-4}
{python} -m espnet3.parallel.clusters.worker_main tls://{host}:{port} --name dummy-name --nthreads 4 --memory-limit 29.80GiB --nanny --death-timeout 120 --dashboard-address 127.0.0.1:0 --preload-nanny espnet3.parallel.clusters.worker_preload --preload espnet3.parallel.clusters.worker_preload --protocol tls:// --tls-ca-file {folder}/.espnet3-tls/certificate.pem --tls-cert {folder}/.espnet3-tls/certificate.pem --tls-key {folder}/.espnet3-tls/key.pem
