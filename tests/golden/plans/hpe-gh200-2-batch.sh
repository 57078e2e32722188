#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=72
#SBATCH --account=ACCOUNT
#SBATCH --time=01:00:00
#SBATCH --output=RUN_DIR/job.log
#SBATCH --network=disable_rdzv_get
#SBATCH --exclusive

# Why these directives:
# --job-name=train: the name in the queue (builtin: windlass)
# --nodes=2: 2 nodes (builtin: windlass)
# --ntasks-per-node=4: one task per rank (builtin: windlass)
# --cpus-per-task=72: CPUs for each rank (builtin: windlass)
# --account=ACCOUNT: who pays (builtin: windlass)
# --time=01:00:00: time limit of the job (builtin: windlass)
# --output=RUN_DIR/job.log: output of the batch script itself (builtin: windlass)
# --network=disable_rdzv_get: FI_CXI_RDZV_PROTO=alt_read works only where the job has switched off the driver's
# rendezvous get (network slingshot-11: HewlettPackard/shs-ccl-docs: ccl_env.sh, nccl/nccl_tuning_guide.md,
# rccl/rccl_tuning_guide.md, checked 2026-04-30)
# --exclusive: whole nodes: one rank per superchip (site hpe-gh200: HPE Cray EX containers (HPC AI Environments),
# first edition, checked 2026-11-15)

# The job: windlass reads the plan, inspects the nodes of the job, and starts the ranks.
exec windlass run --plan RUN_DIR/plan.json
