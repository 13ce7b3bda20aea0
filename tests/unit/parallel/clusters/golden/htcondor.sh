#!/usr/bin/env condor_submit

MY.DaskWorkerName = "htcondor--$F(MY.JobId)--"
batch_name = dummy-name
RequestCpus = MY.DaskWorkerCores
RequestMemory = floor(MY.DaskWorkerMemory / 1048576)
RequestDisk = floor(MY.DaskWorkerDisk / 1024)
MY.JobId = "$(ClusterId).$(ProcId)"
MY.DaskWorkerCores = 4
MY.DaskWorkerMemory = 32000000000
MY.DaskWorkerDisk = 10000000000
getenv = True
periodic_remove = (JobStatus == 5) && (HoldReasonCode == 46 || HoldReasonCode == 47)
request_gpus = 1
allowed_job_duration = 14400

Arguments = "-c 'cd {folder}; export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}{clone}; export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}; export MKL_NUM_THREADS=${MKL_NUM_THREADS:-4}; export OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-4}; {python} -m espnet3.parallel.clusters.worker_main tls://{host}:{port} --name dummy-name --nthreads 4 --memory-limit 29.80GiB --nanny --death-timeout 120 --dashboard-address 127.0.0.1:0 --preload-nanny espnet3.parallel.clusters.worker_preload --preload espnet3.parallel.clusters.worker_preload --protocol tls:// --tls-ca-file {folder}/.espnet3-tls/certificate.pem --tls-cert {folder}/.espnet3-tls/certificate.pem --tls-key {folder}/.espnet3-tls/key.pem'"
Executable = /bin/sh

Queue
