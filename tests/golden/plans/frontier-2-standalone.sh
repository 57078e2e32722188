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

# windlass 0.1.0: train on frontier. Submit this file unchanged:  sbatch FILE
# The nodes must have:
# - the command python train.py '--rank={rank}' 'two words' in /home/user/project
# - the modules PrgEnv-gnu/8.7.0 cpe/26.03 miniforge3/23.11.0-0 rocm/7.1.1 craype-accel-amd-gfx90a rccl-net-plugin
# note: site-status: frontier: from the site's documentation; nothing here was run on the machine. Not public: the
# contents of the rccl-net-plugin module
#
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
w_load PrgEnv-gnu/8.7.0
w_load cpe/26.03
w_load miniforge3/23.11.0-0
w_load rocm/7.1.1
w_load craype-accel-amd-gfx90a
w_load rccl-net-plugin

# Rendezvous: the first host of the job, and a free port on it.
export WINDLASS_JOB_ID=${SLURM_JOB_ID:-0}
export WINDLASS_UID=$(id -u)
scontrol show hostnames "$SLURM_JOB_NODELIST" > RUN_DIR/hosts || exit 3
w_first=$(head -n 1 RUN_DIR/hosts); w_first=${w_first%% *}
w_first=${w_first%%.*}
export WINDLASS_MASTER_ADDR=$w_first
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
# windlass 0.1.0 rank script: train on frontier, 2 nodes x 8 ranks. Made from plan.json in the same folder, for
# every task.
w_fail() {
  echo "windlass: rank ${w_rank:-?} on $w_host: $*" >&2
  exit 70
}
w_host=${SLURMD_NODENAME:-$(uname -n)}; w_host=${w_host%%.*}

# The numbers of this rank, which srun sets inside the task.
w_rank=${SLURM_PROCID:-}
[ -n "$w_rank" ] || w_fail 'none of SLURM_PROCID is set, so srun did not start this task'
w_local_rank=${SLURM_LOCALID:-$((w_rank % 8))}
w_node_rank=${SLURM_NODEID:-$((w_rank / 8))}
w_world_size=16
w_nodes=2
w_ranks_per_node=8
w_seen=${SLURM_STEP_NUM_TASKS:-${SLURM_NTASKS:-16}}
[ "$w_seen" = "$w_world_size" ] || w_fail "the launcher started $w_seen ranks, the plan has $w_world_size: its command line was changed"
. RUN_DIR/job.env || w_fail 'cannot read job.env'
w_master_addr="${WINDLASS_MASTER_ADDR:?windlass: not exported by the batch script}"
w_master_port="${WINDLASS_MASTER_PORT:?windlass: not exported by the batch script}"
w_job_id=${WINDLASS_JOB_ID-}
export WINDLASS_RUN_DIR=RUN_DIR

# core files of many ranks fill the project's quota
ulimit -c 0 2>/dev/null || :

# Caches of compilers and libraries: on this node, for this run, made before any rank needs them.
w_parent=/tmp/windlass-"${WINDLASS_UID-}"-"${WINDLASS_JOB_ID-}"
export WINDLASS_CACHE_DIR=$w_parent/n$w_node_rank
mkdir -m 700 "$w_parent" 2>/dev/null || [ -d "$w_parent" ] || w_fail "cannot make $w_parent"
[ -O "$w_parent" ] && [ ! -L "$w_parent" ] || w_fail "$w_parent belongs to another user"
mkdir -p "$WINDLASS_CACHE_DIR"/triton "$WINDLASS_CACHE_DIR"/inductor "$WINDLASS_CACHE_DIR"/extensions "$WINDLASS_CACHE_DIR"/numba "$WINDLASS_CACHE_DIR"/matplotlib "$WINDLASS_CACHE_DIR"/miopen || w_fail "cannot make the caches in $WINDLASS_CACHE_DIR"

# Where this rank sits: cores of the L3 cache next to each rank's device
w_cpus= w_device=
case "$w_local_rank" in
  0) w_cpus=49-55 w_device=0 ;;
  1) w_cpus=57-63 w_device=1 ;;
  2) w_cpus=17-23 w_device=2 ;;
  3) w_cpus=25-31 w_device=3 ;;
  4) w_cpus=1-7 w_device=4 ;;
  5) w_cpus=9-15 w_device=5 ;;
  6) w_cpus=33-39 w_device=6 ;;
  7) w_cpus=41-47 w_device=7 ;;
  *) w_fail "local rank $w_local_rank, but the plan has 8 ranks per node" ;;
esac

# Variables of the plan, each with its reason.
# a rank's output appears when it is written (builtin: windlass)
export PYTHONUNBUFFERED=1
# each rank has 7 cores (builtin: windlass)
export OMP_NUM_THREADS=7
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
# MIOpen keeps SQLite files, which break on shared file systems; the folder must exist beforehand (builtin:
# windlass)
export MIOPEN_USER_DB_PATH="${WINDLASS_CACHE_DIR-}"/miopen
# MIOpen keeps SQLite files, which break on shared file systems; the folder must exist beforehand (builtin:
# windlass)
export MIOPEN_CUSTOM_CACHE_DIR="${WINDLASS_CACHE_DIR-}"/miopen
# models and data sets fill the home quota; every node needs the same copy (site frontier: OLCF user documentation,
# software/python/index.rst and sbcast_conda.rst, checked 2026-07-22)
if [ -e /lustre/orion/account/scratch ]; then export HF_HOME=/lustre/orion/account/scratch/"${USER-}"/.cache/huggingface; fi
# data sets fill the home quota too (site frontier: OLCF user documentation, software/python/index.rst and
# sbcast_conda.rst, checked 2026-07-22)
if [ -e /lustre/orion/account/scratch ]; then export HF_DATASETS_CACHE=/lustre/orion/account/scratch/"${USER-}"/.cache/huggingface/datasets; fi
# torch hub's downloads fill the home quota (site frontier: OLCF user documentation, software/python/index.rst and
# sbcast_conda.rst, checked 2026-07-22)
if [ -e /lustre/orion/account/scratch ]; then export TORCH_HOME=/lustre/orion/account/scratch/"${USER-}"/.cache/torch; fi
# since Slurm 22.05 an srun inside the job does not inherit --cpus-per-task (builtin: windlass)
export SRUN_CPUS_PER_TASK=7
# rings may cross NICs, which was found faster on large systems (network slingshot-11: HewlettPackard/shs-ccl-docs:
# ccl_env.sh, nccl/nccl_tuning_guide.md, rccl/rccl_tuning_guide.md, checked 2026-04-30)
export NCCL_CROSS_NIC=1
# Gloo would otherwise take whatever interface the host name resolves to (network slingshot-11: Gloo takes exact
# interface names, no prefixes and no exclusion lists. hsn0 is the first fabric interface, checked 2026-11-15)
if [ -e /sys/class/net/hsn0 ]; then export GLOO_SOCKET_IFNAME=hsn0; fi
# the provider's own registrations of host memory can deadlock with the device runtime (network slingshot-11:
# HewlettPackard/shs-ccl-docs: ccl_env.sh, nccl/nccl_tuning_guide.md, rccl/rccl_tuning_guide.md, checked 2026-04-30)
export FI_CXI_DISABLE_HOST_REGISTER=1
# large jobs overflow the default completion queue (network slingshot-11: HewlettPackard/shs-ccl-docs: ccl_env.sh,
# nccl/nccl_tuning_guide.md, rccl/rccl_tuning_guide.md, checked 2026-04-30)
export FI_CXI_DEFAULT_CQ_SIZE=131072
# large jobs with many unexpected messages need more transmit entries than 1024 (network slingshot-11:
# HewlettPackard/shs-ccl-docs: ccl_env.sh, nccl/nccl_tuning_guide.md, rccl/rccl_tuning_guide.md, checked 2026-04-30)
export FI_CXI_DEFAULT_TX_SIZE=2048
# matching moves to software when the NIC's entries run out, instead of failing (network slingshot-11:
# HewlettPackard/shs-ccl-docs: ccl_env.sh, nccl/nccl_tuning_guide.md, rccl/rccl_tuning_guide.md, checked 2026-04-30)
export FI_CXI_RX_MATCH_MODE=hybrid
# the rendezvous protocol for large jobs; needs the driver's rdzv_get_en=0, which the scheduler's switch sets
# (network slingshot-11: HewlettPackard/shs-ccl-docs: ccl_env.sh, nccl/nccl_tuning_guide.md,
# rccl/rccl_tuning_guide.md, checked 2026-04-30)
export FI_CXI_RDZV_PROTO=alt_read
# every message goes by rendezvous, as alt_read wants (network slingshot-11: HewlettPackard/shs-ccl-docs:
# ccl_env.sh, nccl/nccl_tuning_guide.md, rccl/rccl_tuning_guide.md, checked 2026-04-30)
export FI_CXI_RDZV_THRESHOLD=0
# belongs to alt_read (network slingshot-11: HewlettPackard/shs-ccl-docs: ccl_env.sh, nccl/nccl_tuning_guide.md,
# rccl/rccl_tuning_guide.md, checked 2026-04-30)
export FI_CXI_RDZV_GET_MIN=0
# no data is sent before the receiver is ready (network slingshot-11: HewlettPackard/shs-ccl-docs: ccl_env.sh,
# nccl/nccl_tuning_guide.md, rccl/rccl_tuning_guide.md, checked 2026-04-30)
export FI_CXI_RDZV_EAGER_SIZE=0
# the versions of the loaded modules, not the system's defaults (site frontier: OLCF user documentation,
# software/analytics/pytorch_frontier.rst, checked 2026-07-22)
export LD_LIBRARY_PATH="${CRAY_LD_LIBRARY_PATH-}""${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
# the site's choice: a kernel module watches memory; memhooks hangs with RCCL (site frontier: OLCF user
# documentation, software/analytics/pytorch_frontier.rst, checked 2026-07-22)
export FI_MR_CACHE_MONITOR=kdreg2
# device memory is visible to the NIC at once (site frontier: OLCF user documentation,
# software/analytics/pytorch_frontier.rst, checked 2026-07-22)
export HSA_FORCE_FINE_GRAIN_PCIE=1
# RCCL's bootstrap uses the fabric's interfaces (site frontier: OLCF user documentation,
# software/analytics/pytorch_frontier.rst, checked 2026-07-22)
export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3
# the NIC reads device memory directly up to the host bridge (site frontier: OLCF user documentation,
# software/analytics/pytorch_frontier.rst, checked 2026-07-22)
export NCCL_NET_GDR_LEVEL=PHB
# compute nodes have no route to the internet but this (site frontier: OLCF user documentation,
# software/analytics/pytorch_frontier.rst, checked 2026-07-22)
export http_proxy=http://proxy.ccs.ornl.gov:3128/
# compute nodes have no route to the internet but this (site frontier: OLCF user documentation,
# software/analytics/pytorch_frontier.rst, checked 2026-07-22)
export https_proxy=http://proxy.ccs.ornl.gov:3128/
# compute nodes have no route to the internet but this (site frontier: OLCF user documentation,
# software/analytics/pytorch_frontier.rst, checked 2026-07-22)
export ftp_proxy=ftp://proxy.ccs.ornl.gov:3128/
# nodes of the machine are reached directly (site frontier: OLCF user documentation,
# software/analytics/pytorch_frontier.rst, checked 2026-07-22)
export no_proxy='localhost,127.0.0.0/8,*.ccs.ornl.gov'

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

srun \
  --nodes=2 \
  --ntasks=16 \
  --ntasks-per-node=8 \
  --distribution=block:block \
  --cpus-per-task=7 \
  --cpu-bind=mask_cpu=0x00fe000000000000,0xfe00000000000000,0x0000000000fe0000,0x00000000fe000000,0x00000000000000fe,0x000000000000fe00,0x000000fe00000000,0x0000fe0000000000 \
  --gpus-per-node=8 \
  --gpu-bind=none \
  --kill-on-bad-exit=1 \
  --wait=0 \
  --export=ALL \
  --job-name=train.ed17072c \
  --label \
  --output=RUN_DIR/out/node-%4n.log \
  --network=disable_rdzv_get \
  /bin/sh RUN_DIR/rank.sh
w_code=$?

# Caches of the ranks are removed from every node.
srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --distribution=block:block --overlap --mem=0 --cpu-bind=none --gres=none --kill-on-bad-exit=0 --wait=0 --export=ALL --job-name=train-end /bin/rm -rf /tmp/windlass-"${WINDLASS_UID-}"-"${WINDLASS_JOB_ID-}"
echo "$w_code" > RUN_DIR/exit_code
exit $w_code
