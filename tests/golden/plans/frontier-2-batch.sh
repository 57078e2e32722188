#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=7
#SBATCH --gpus-per-node=8
#SBATCH --partition=batch
#SBATCH --account=ACCOUNT
#SBATCH --time=01:00:00
#SBATCH --output=RUN_DIR/job.log
#SBATCH --network=disable_rdzv_get

# Why these directives:
# --job-name=train: the name in the queue (builtin: windlass)
# --nodes=2: 2 nodes (builtin: windlass)
# --ntasks-per-node=8: one task per rank (builtin: windlass)
# --cpus-per-task=7: CPUs for each rank (builtin: windlass)
# --gpus-per-node=8: devices, requested in the site's form (builtin: windlass)
# --partition=batch: where to run (builtin: windlass)
# --account=ACCOUNT: who pays (builtin: windlass)
# --time=01:00:00: time limit of the job (builtin: windlass)
# --output=RUN_DIR/job.log: output of the batch script itself (builtin: windlass)
# --network=disable_rdzv_get: the site asks for it in RCCL jobs: alt_read works only with it (site frontier: OLCF
# user documentation, systems/frontier_user_guide.rst, checked 2026-07-22)

# The job: windlass reads the plan, inspects the nodes of the job, and starts the ranks.
exec windlass run --plan RUN_DIR/plan.json
