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

# windlass 0.1.0: train on aurora. Submit this file unchanged:  qsub FILE
# The nodes must have:
# - the command python train.py '--rank={rank}' 'two words' in /home/user/project
# - the modules frameworks
# note: queue-chosen: queue debug: prod, the default of aurora, takes jobs of 256 nodes or more, not 2
# note: site-status: aurora: from the site's documentation and two training documents; nothing here was run on the
# machine. Not public: the contents of the frameworks_optimized module, a multi-node container recipe
#
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

cd /home/user/project || exit 3
(umask 077 && mkdir -p RUN_DIR/out RUN_DIR/where RUN_DIR/ends RUN_DIR/comm) && [ -O RUN_DIR ] && chmod go-w RUN_DIR RUN_DIR/out RUN_DIR/where RUN_DIR/ends RUN_DIR/comm || exit 3
rm -f RUN_DIR/hosts RUN_DIR/rank.sh RUN_DIR/ends/*

# Modules of the site and yours.
if ! type module >/dev/null 2>&1; then
  for f in /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh /etc/profile.d/modules.sh /usr/share/lmod/lmod/init/bash /usr/share/modules/init/bash /opt/cray/pe/lmod/lmod/init/bash; do
    [ -r "$f" ] && . "$f" && break
  done
fi
w_load() { module load "$1" || { echo "windlass: module $1 does not load" >&2; exit 3; }; }
w_load frameworks

# Rendezvous: the first host of the job, and a free port on it.
export WINDLASS_JOB_ID=${PBS_JOBID:-0}
export WINDLASS_UID=$(id -u)
awk 'NF && !seen[$1]++ { print $1 }' "$PBS_NODEFILE" > RUN_DIR/hosts || exit 3
w_first=$(head -n 1 RUN_DIR/hosts); w_first=${w_first%% *}
w_first=${w_first%%.*}
export WINDLASS_MASTER_ADDR=$w_first.hsn.cm.aurora.alcf.anl.gov
w_digits=${WINDLASS_JOB_ID%%[!0-9]*}
# An id that is no number (Flux), or is larger than a shell counts: its checksum.
[ -n "$w_digits" ] && [ ${#w_digits} -le 18 ] || w_digits=$(printf %s "$WINDLASS_JOB_ID" | cksum | cut -d " " -f 1)
w_port=$((20000 + 10#$w_digits % 12000))
while cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -qi "^ *[0-9]*: [0-9A-F]*:$(printf %04X "$w_port") [0-9A-F:]* 0A"; do w_port=$((w_port + 1)); done
export WINDLASS_MASTER_PORT=$w_port
printf "export %s='%s'\n" WINDLASS_JOB_ID "$WINDLASS_JOB_ID" WINDLASS_UID "$WINDLASS_UID" WINDLASS_MASTER_ADDR "$WINDLASS_MASTER_ADDR" WINDLASS_MASTER_PORT "$WINDLASS_MASTER_PORT" > RUN_DIR/job.env || exit 3

# The rank script: every task runs it before the command.
cat > RUN_DIR/rank.sh <<'END_OF_FILE'
#!/bin/sh
# windlass 0.1.0 rank script: train on aurora, 2 nodes x 12 ranks. Made from plan.json in the same folder, for every
# task.
w_fail() {
  echo "windlass: rank ${w_rank:-?} on $w_host: $*" >&2
  exit 70
}
w_host=${SLURMD_NODENAME:-$(uname -n)}; w_host=${w_host%%.*}

# The numbers of this rank, which pals sets inside the task.
w_rank=${PALS_RANKID:-${PMIX_RANK:-${PMI_RANK:-}}}
[ -n "$w_rank" ] || w_fail 'none of PALS_RANKID, PMIX_RANK, PMI_RANK is set, so pals did not start this task'
w_local_rank=${PALS_LOCAL_RANKID:-${PMI_LOCAL_RANK:-$((w_rank % 12))}}
w_node_rank=${PALS_NODEID:-$((w_rank / 12))}
w_world_size=24
w_nodes=2
w_ranks_per_node=12
w_seen=${PMI_SIZE:-24}
[ "$w_seen" = "$w_world_size" ] || w_fail "the launcher started $w_seen ranks, the plan has $w_world_size: its command line was changed"
. RUN_DIR/job.env || w_fail 'cannot read job.env'
w_master_addr="${WINDLASS_MASTER_ADDR:?windlass: not exported by the batch script}"
w_master_port="${WINDLASS_MASTER_PORT:?windlass: not exported by the batch script}"
w_job_id=${WINDLASS_JOB_ID-}
export WINDLASS_RUN_DIR=RUN_DIR

# no core files of 98,304 ranks
ulimit -c 0 2>/dev/null || :

# Caches of compilers and libraries: on this node, for this run, made before any rank needs them.
w_parent=/tmp/windlass-"${WINDLASS_UID-}"-"${WINDLASS_JOB_ID-}"
export WINDLASS_CACHE_DIR=$w_parent/n$w_node_rank
mkdir -m 700 "$w_parent" 2>/dev/null || [ -d "$w_parent" ] || w_fail "cannot make $w_parent"
[ -O "$w_parent" ] && [ ! -L "$w_parent" ] || w_fail "$w_parent belongs to another user"
mkdir -p "$WINDLASS_CACHE_DIR"/triton "$WINDLASS_CACHE_DIR"/inductor "$WINDLASS_CACHE_DIR"/extensions "$WINDLASS_CACHE_DIR"/numba "$WINDLASS_CACHE_DIR"/matplotlib "$WINDLASS_CACHE_DIR"/neo "$WINDLASS_CACHE_DIR"/sycl || w_fail "cannot make the caches in $WINDLASS_CACHE_DIR"

# Where this rank sits: the site's own list for training: one rank per tile, four cores for data loading, away from
# oneCCL's workers
w_cpus= w_device=
case "$w_local_rank" in
  0) w_cpus=4-7 w_device=0 ;;
  1) w_cpus=8-11 w_device=1 ;;
  2) w_cpus=12-15 w_device=2 ;;
  3) w_cpus=16-19 w_device=3 ;;
  4) w_cpus=20-23 w_device=4 ;;
  5) w_cpus=24-27 w_device=5 ;;
  6) w_cpus=56-59 w_device=6 ;;
  7) w_cpus=60-63 w_device=7 ;;
  8) w_cpus=64-67 w_device=8 ;;
  9) w_cpus=68-71 w_device=9 ;;
  10) w_cpus=72-75 w_device=10 ;;
  11) w_cpus=76-79 w_device=11 ;;
  *) w_fail "local rank $w_local_rank, but the plan has 12 ranks per node" ;;
esac

# Variables of the plan, each with its reason.
# a rank's output appears when it is written (builtin: windlass)
export PYTHONUNBUFFERED=1
# each rank has 4 cores (builtin: windlass)
export OMP_NUM_THREADS=4
# Triton's cache races between ranks on a shared file system (builtin: windlass)
export TRITON_CACHE_DIR="${WINDLASS_CACHE_DIR-}"/triton
# torch.compile's cache races between nodes on a shared file system (builtin: windlass)
export TORCHINDUCTOR_CACHE_DIR="${WINDLASS_CACHE_DIR-}"/inductor
# torch's built extensions lock a folder in home, and a killed job leaves the lock (builtin: windlass)
export TORCH_EXTENSIONS_DIR="${WINDLASS_CACHE_DIR-}"/extensions
# numba's cache next to the sources is on the shared file system or read-only (builtin: windlass)
export NUMBA_CACHE_DIR="${WINDLASS_CACHE_DIR-}"/numba
# every rank would build matplotlib's font list in home at once (builtin: windlass)
export MPLCONFIGDIR="${WINDLASS_CACHE_DIR-}"/matplotlib
# the compute runtime's compile cache in home is written by every rank (builtin: windlass)
export NEO_CACHE_DIR="${WINDLASS_CACHE_DIR-}"/neo
# SYCL's persistent device code in home is written by every rank (builtin: windlass)
export SYCL_CACHE_DIR="${WINDLASS_CACHE_DIR-}"/sycl
# models and data sets fill the home quota; every node needs the same copy (site aurora: ALCF user guide,
# aurora/data-management/lustre/flare.md and daos/daos-overview.md, checked 2026-08-19)
if [ -e /lus/flare/projects/ACCOUNT ]; then export HF_HOME=/lus/flare/projects/ACCOUNT/"${USER-}"/.cache/huggingface; fi
# data sets fill the home quota too (site aurora: ALCF user guide, aurora/data-management/lustre/flare.md and
# daos/daos-overview.md, checked 2026-08-19)
if [ -e /lus/flare/projects/ACCOUNT ]; then export HF_DATASETS_CACHE=/lus/flare/projects/ACCOUNT/"${USER-}"/.cache/huggingface/datasets; fi
# torch hub's downloads fill the home quota (site aurora: ALCF user guide, aurora/data-management/lustre/flare.md
# and daos/daos-overview.md, checked 2026-08-19)
if [ -e /lus/flare/projects/ACCOUNT ]; then export TORCH_HOME=/lus/flare/projects/ACCOUNT/"${USER-}"/.cache/torch; fi
# Gloo would otherwise take whatever interface the host name resolves to (network slingshot-11: Gloo takes exact
# interface names, no prefixes and no exclusion lists. hsn0 is the first fabric interface, checked 2026-11-15)
if [ -e /sys/class/net/hsn0 ]; then export GLOO_SOCKET_IFNAME=hsn0; fi
# every tile is a torch device: 12 per node (site aurora: ALCF user guide,
# aurora/data-science/frameworks/pytorch.md, checked 2026-08-19)
export ZE_FLAT_DEVICE_HIERARCHY=FLAT
# oneCCL learns ranks from PALS by PMIx (site aurora: ALCF user guide, aurora/data-science/frameworks/oneCCL.md,
# checked 2026-08-19)
export CCL_PROCESS_LAUNCHER=pmix
# oneCCL moves data with the site's MPI, which supports the fabric (site aurora: ALCF user guide,
# aurora/data-science/frameworks/oneCCL.md, checked 2026-08-19)
export CCL_ATL_TRANSPORT=mpi
# oneCCL's start-up exchange goes through MPI instead of sockets (site aurora: ALCF user guide,
# aurora/data-science/frameworks/oneCCL.md, checked 2026-08-19)
export CCL_KVS_MODE=mpi
# part of the site's minimal set: the fabric's memory cache follows changes without hooking memory calls (site
# aurora: ALCF user guide, aurora/data-science/frameworks/oneCCL.md, checked 2026-08-19)
export FI_MR_CACHE_MONITOR=userfaultfd
# numexpr refuses the node's 208 threads: its own limit is 64 (site aurora: PyTorch on Aurora, older edition of the
# site's page (torch 2.3, oneCCL bindings), checked 2026-11-15)
export NUMEXPR_NUM_THREADS=64
# PBS gives a long path, and Python multiprocessing then fails with "AF_UNIX path too long" (site aurora: ALCF user
# guide, aurora/known-issues.md, checked 2026-08-19)
export TMPDIR=/tmp
# compute nodes have no route to the internet but this (site aurora: ALCF user guide, aurora/running-jobs-aurora.md,
# checked 2026-08-19)
export http_proxy=http://proxy.alcf.anl.gov:3128
# compute nodes have no route to the internet but this (site aurora: ALCF user guide, aurora/running-jobs-aurora.md,
# checked 2026-08-19)
export https_proxy=http://proxy.alcf.anl.gov:3128
# compute nodes have no route to the internet but this (site aurora: ALCF user guide, aurora/running-jobs-aurora.md,
# checked 2026-08-19)
export ftp_proxy=http://proxy.alcf.anl.gov:3128
# some programs read only the upper-case name (site aurora: ALCF user guide, aurora/getting-started-on-aurora.md,
# checked 2026-08-19)
export HTTP_PROXY=http://proxy.alcf.anl.gov:3128
# some programs read only the upper-case name (site aurora: ALCF user guide, aurora/getting-started-on-aurora.md,
# checked 2026-08-19)
export HTTPS_PROXY=http://proxy.alcf.anl.gov:3128
# nodes of the machine are reached directly (site aurora: ALCF user guide, aurora/running-jobs-aurora.md, checked
# 2026-08-19)
export no_proxy='admin,*.hostmgmt.cm.aurora.alcf.anl.gov,*.alcf.anl.gov,localhost'
# oneCCL's worker threads get cores that no rank uses (site aurora: ALCF user guide,
# aurora/data-science/frameworks/oneCCL.md, checked 2026-08-19)
export CCL_WORKER_AFFINITY=42,43,44,45,46,47,94,95,96,97,98,99

# Variables that frameworks read.
export RANK="$w_rank"
export LOCAL_RANK="$w_local_rank"
export WORLD_SIZE="$w_world_size"
export LOCAL_WORLD_SIZE="$w_ranks_per_node"
export NODE_RANK="$w_node_rank"
export GROUP_RANK="$w_node_rank"
export NNODES="$w_nodes"
export MASTER_ADDR="$w_master_addr"
export MASTER_PORT="$w_master_port"
export TORCHELASTIC_RUN_ID=windlass-"$w_job_id"
export HOROVOD_RANK="$w_rank"
export HOROVOD_SIZE="$w_world_size"
export HOROVOD_LOCAL_RANK="$w_local_rank"
export HOROVOD_LOCAL_SIZE="$w_ranks_per_node"
export HOROVOD_CROSS_RANK="$w_node_rank"
export HOROVOD_CROSS_SIZE="$w_nodes"
export PALS_LOCAL_RANKID="$w_local_rank"
export MPI_LOCALRANKID="$w_local_rank"
export MPI_LOCALNRANKS="$w_ranks_per_node"
export WINDLASS_RANK="$w_rank"
export WINDLASS_LOCAL_RANK="$w_local_rank"
export WINDLASS_NODE_RANK="$w_node_rank"
export WINDLASS_WORLD_SIZE="$w_world_size"
export WINDLASS_JOB_ID="$w_job_id"

# The command.
cd /home/user/project || w_fail "cannot enter the working folder"
set -- \
  python \
  train.py \
  --rank="$w_rank" \
  'two words'

# What this rank really got, one line in one file per node.
w_got=
while read -r w_key w_value; do [ "$w_key" = Cpus_allowed_list: ] && { w_got=$w_value; break; }; done < /proc/$$/status
printf '%s\t%s\t%s\t%s\t%s\n' "$w_rank" "$w_host" "$w_got" "$w_device" "$$" >> "$WINDLASS_RUN_DIR/where/$w_node_rank" 2>/dev/null || :

exec "$@"
END_OF_FILE

mpiexec \
  -n 24 \
  --ppn 12 \
  --cpu-bind=list:4-7:8-11:12-15:16-19:20-23:24-27:56-59:60-63:64-67:68-71:72-75:76-79 \
  --envall \
  --pmi=pmix \
  --label \
  --line-buffer \
  /bin/sh RUN_DIR/rank.sh
w_code=$?

# Caches of the ranks are removed from every node.
mpiexec -n 2 --ppn 1 --cpu-bind=none --no-vni --envall --line-buffer /bin/rm -rf /tmp/windlass-"${WINDLASS_UID-}"-"${WINDLASS_JOB_ID-}"
echo "$w_code" > RUN_DIR/exit_code
exit $w_code
