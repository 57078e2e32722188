#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=7
#SBATCH --gpus-per-node=8
#SBATCH --partition=standard-g
#SBATCH --account=ACCOUNT
#SBATCH --time=01:00:00
#SBATCH --output=RUN_DIR/job.log
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --threads-per-core=1

# Why these directives:
# --job-name=train: the name in the queue (builtin: windlass)
# --nodes=2: 2 nodes (builtin: windlass)
# --ntasks-per-node=8: one task per rank (builtin: windlass)
# --cpus-per-task=7: CPUs for each rank (builtin: windlass)
# --gpus-per-node=8: devices, requested in the site's form (builtin: windlass)
# --partition=standard-g: where to run (builtin: windlass)
# --account=ACCOUNT: who pays (builtin: windlass)
# --time=01:00:00: time limit of the job (builtin: windlass)
# --output=RUN_DIR/job.log: output of the batch script itself (builtin: windlass)
# --exclusive: the CPU masks are right only on a whole node (site lumi: LUMI, Getting Started with AI workshop, 09
# Extreme scale AI, checked 2025-10-02)
# --mem=0: all memory of the node; /tmp is memory and counts too (site lumi: LUMI, Getting Started with AI workshop,
# 09 Extreme scale AI, checked 2025-10-02)
# --threads-per-core=1: one hardware thread per core, as the masks count them (site lumi: LUMI, Getting Started with
# AI workshop, 09 Extreme scale AI, checked 2025-10-02)

# The job: windlass reads the plan, inspects the nodes of the job, and starts the ranks.
exec windlass run --plan RUN_DIR/plan.json
