#!/usr/bin/env condor_submit

MY.DaskWorkerName = "htcondor--$F(MY.JobId)--"
batch_name = espnet3
RequestCpus = MY.DaskWorkerCores
RequestMemory = floor(MY.DaskWorkerMemory / 1048576)
RequestDisk = floor(MY.DaskWorkerDisk / 1024)
MY.JobId = "$(ClusterId).$(ProcId)"
MY.DaskWorkerCores = 4
MY.DaskWorkerMemory = 32000000000
MY.DaskWorkerDisk = 10000000000
on_exit_remove = (ExitBySignal == False) && (ExitCode != 75)
getenv = True
periodic_remove = (JobStatus == 5) && (HoldReasonCode == 46 || HoldReasonCode == 47)
request_gpus = 1
allowed_job_duration = 14400

Arguments = "-c 'cd {folder}; export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}{clone}; export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}; export MKL_NUM_THREADS=${MKL_NUM_THREADS:-4}; export OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-4}; exec {python} -P -m espnet3.parallel.detached.work ''/data/it''""''""''s a run'' --env htcondor --generation 0 --submitted 0.000 --walltime 14400 --job $(ClusterId).$(ProcId)'"
Executable = /bin/sh

Queue
