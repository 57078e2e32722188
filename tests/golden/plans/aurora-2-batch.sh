#!/bin/bash
#PBS -N train
#PBS -l select=2
#PBS -l walltime=01:00:00
#PBS -q debug
#PBS -A ACCOUNT
#PBS -o RUN_DIR/job.log
#PBS -l place=scatter
#PBS -l filesystems=flare:home
#PBS -k doe
#PBS -j oe

# Why these directives:
# -N train: the name in the queue (builtin: windlass)
# -l select=2: 2 nodes, one chunk on each (builtin: windlass)
# -l walltime=01:00:00: time limit of the job (builtin: windlass)
# -q debug: where to run (builtin: windlass)
# -A ACCOUNT: who pays (builtin: windlass)
# -o RUN_DIR/job.log: output of the batch script itself (builtin: windlass)
# -l place=scatter: one chunk per node (site aurora: ALCF user guide, aurora/running-jobs-aurora.md, checked
# 2026-08-19)
# -l filesystems=flare:home: the site refuses jobs that do not name the file systems they need (site aurora: ALCF
# user guide, aurora/running-jobs-aurora.md, checked 2026-08-19)
# -k doe: output goes straight to its files while the job runs (site aurora: ALCF user guide,
# aurora/running-jobs-aurora.md, checked 2026-08-19)
# -j oe: one file for output and errors (site aurora: ALCF user guide, aurora/running-jobs-aurora.md, checked
# 2026-08-19)

# The job: windlass reads the plan, inspects the nodes of the job, and starts the ranks.
exec windlass run --plan RUN_DIR/plan.json
