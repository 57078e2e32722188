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

# windlass 0.1.0: train on hpe-gh200. Submit this file unchanged:  sbatch FILE
# The nodes must have:
# - the command python train.py '--rank={rank}' 'two words' in /home/user/project
# note: site-status: hpe-gh200: from HPE's documents, whose runs went to 8 nodes; nothing here was run on the
# machine. Not published: partitions, limits, file systems, how to detect it. Give --site hpe-gh200, and an overlay
# with your paths
#
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

cd /home/user/project || exit 3
(umask 077 && mkdir -p RUN_DIR/out RUN_DIR/where RUN_DIR/ends RUN_DIR/comm) && [ -O RUN_DIR ] && chmod go-w RUN_DIR RUN_DIR/out RUN_DIR/where RUN_DIR/ends RUN_DIR/comm || exit 3
rm -f RUN_DIR/hosts RUN_DIR/rank.sh RUN_DIR/ends/*

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
w_port=$((10000 + 10#$w_digits % 10000))
while cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -qi "^ *[0-9]*: [0-9A-F]*:$(printf %04X "$w_port") [0-9A-F:]* 0A"; do w_port=$((w_port + 1)); done
export WINDLASS_MASTER_PORT=$w_port
printf "export %s='%s'\n" WINDLASS_JOB_ID "$WINDLASS_JOB_ID" WINDLASS_UID "$WINDLASS_UID" WINDLASS_MASTER_ADDR "$WINDLASS_MASTER_ADDR" WINDLASS_MASTER_PORT "$WINDLASS_MASTER_PORT" > RUN_DIR/job.env || exit 3

# The rank script: every task runs it before the command.
cat > RUN_DIR/rank.sh <<'END_OF_FILE'
#!/bin/sh
# windlass 0.1.0 rank script: train on hpe-gh200, 2 nodes x 4 ranks. Made from plan.json in the same folder, for
# every task.
w_fail() {
  echo "windlass: rank ${w_rank:-?} on $w_host: $*" >&2
  exit 70
}
w_host=${SLURMD_NODENAME:-$(uname -n)}; w_host=${w_host%%.*}

# The numbers of this rank, which srun sets inside the task.
w_rank=${SLURM_PROCID:-}
[ -n "$w_rank" ] || w_fail 'none of SLURM_PROCID is set, so srun did not start this task'
w_local_rank=${SLURM_LOCALID:-$((w_rank % 4))}
w_node_rank=${SLURM_NODEID:-$((w_rank / 4))}
w_world_size=8
w_nodes=2
w_ranks_per_node=4
w_seen=${SLURM_STEP_NUM_TASKS:-${SLURM_NTASKS:-8}}
[ "$w_seen" = "$w_world_size" ] || w_fail "the launcher started $w_seen ranks, the plan has $w_world_size: its command line was changed"
. RUN_DIR/job.env || w_fail 'cannot read job.env'
w_master_addr="${WINDLASS_MASTER_ADDR:?windlass: not exported by the batch script}"
w_master_port="${WINDLASS_MASTER_PORT:?windlass: not exported by the batch script}"
w_job_id=${WINDLASS_JOB_ID-}
export WINDLASS_RUN_DIR=RUN_DIR

# core files of many ranks fill quotas
ulimit -c 0 2>/dev/null || :

# Caches of compilers and libraries: on this node, for this run, made before any rank needs them.
w_parent=/tmp/windlass-"${WINDLASS_UID-}"-"${WINDLASS_JOB_ID-}"
export WINDLASS_CACHE_DIR=$w_parent/n$w_node_rank
mkdir -m 700 "$w_parent" 2>/dev/null || [ -d "$w_parent" ] || w_fail "cannot make $w_parent"
[ -O "$w_parent" ] && [ ! -L "$w_parent" ] || w_fail "$w_parent belongs to another user"
mkdir -p "$WINDLASS_CACHE_DIR"/triton "$WINDLASS_CACHE_DIR"/inductor "$WINDLASS_CACHE_DIR"/extensions "$WINDLASS_CACHE_DIR"/numba "$WINDLASS_CACHE_DIR"/matplotlib "$WINDLASS_CACHE_DIR"/cuda || w_fail "cannot make the caches in $WINDLASS_CACHE_DIR"

# Where this rank sits: cores of the NUMA domain next to each rank's device
w_cpus= w_device=
case "$w_local_rank" in
  0) w_cpus=0-71 w_device=0 ;;
  1) w_cpus=72-143 w_device=1 ;;
  2) w_cpus=144-215 w_device=2 ;;
  3) w_cpus=216-287 w_device=3 ;;
  *) w_fail "local rank $w_local_rank, but the plan has 4 ranks per node" ;;
esac

# Variables of the plan, each with its reason.
# a rank's output appears when it is written (builtin: windlass)
export PYTHONUNBUFFERED=1
# each rank has 72 cores (builtin: windlass)
export OMP_NUM_THREADS=72
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
# the driver's compile cache in home is written by every rank (builtin: windlass)
export CUDA_CACHE_PATH="${WINDLASS_CACHE_DIR-}"/cuda
# since Slurm 22.05 an srun inside the job does not inherit --cpus-per-task (builtin: windlass)
export SRUN_CPUS_PER_TASK=72
# without it, a missing fabric plugin makes NCCL use TCP without a message, ten to seventy times slower. With it,
# NCCL stops with an error (network slingshot-11: HewlettPackard/shs-ccl-docs: ccl_env.sh,
# nccl/nccl_tuning_guide.md, rccl/rccl_tuning_guide.md, checked 2026-04-30)
export NCCL_NET='AWS Libfabric'
# lets the NIC read device memory directly up to the host bridge; the default (PXB) is too near for these nodes
# (network slingshot-11: HewlettPackard/shs-ccl-docs: ccl_env.sh, nccl/nccl_tuning_guide.md,
# rccl/rccl_tuning_guide.md, checked 2026-04-30)
export NCCL_NET_GDR_LEVEL=PHB
# rings may cross NICs, which was found faster on large systems (network slingshot-11: HewlettPackard/shs-ccl-docs:
# ccl_env.sh, nccl/nccl_tuning_guide.md, rccl/rccl_tuning_guide.md, checked 2026-04-30)
export NCCL_CROSS_NIC=1
# bootstrap and sockets use the fabric's interfaces, not the management network (network slingshot-11:
# HewlettPackard/shs-ccl-docs: ccl_env.sh, nccl/nccl_tuning_guide.md, rccl/rccl_tuning_guide.md, checked 2026-04-30)
export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3
# Gloo would otherwise take whatever interface the host name resolves to (network slingshot-11: Gloo takes exact
# interface names, no prefixes and no exclusion lists. hsn0 is the first fabric interface, checked 2026-11-15)
if [ -e /sys/class/net/hsn0 ]; then export GLOO_SOCKET_IFNAME=hsn0; fi
# the default monitor hooks memory calls and deadlocks with NCCL and RCCL (network slingshot-11:
# HewlettPackard/shs-ccl-docs: ccl_env.sh, nccl/nccl_tuning_guide.md, rccl/rccl_tuning_guide.md, checked 2026-04-30)
export FI_MR_CACHE_MONITOR=userfaultfd
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
# default of the image's entry point (site hpe-gh200: crickett-hpe/hpc-ai-envs: dockerfile_scripts/scrape_libs.sh,
# wrapper.sh, examples, checked 2026-06-26)
export FI_CXI_SAFE_DEVMEM_COPY_THRESHOLD=16777216
# default of the image's entry point (site hpe-gh200: crickett-hpe/hpc-ai-envs: dockerfile_scripts/scrape_libs.sh,
# wrapper.sh, examples, checked 2026-06-26)
export FI_CXI_DISABLE_NON_INJECT_MSG_IDC=1
# small copies from device memory go through GDRCopy (site hpe-gh200: crickett-hpe/hpc-ai-envs:
# dockerfile_scripts/scrape_libs.sh, wrapper.sh, examples, checked 2026-06-26)
export FI_HMEM_CUDA_USE_GDRCOPY=1

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
  --ntasks=8 \
  --ntasks-per-node=4 \
  --cpus-per-task=72 \
  --cpu-bind=mask_cpu=0x000000000000000000000000000000000000000000000000000000ffffffffffffffffff,0x000000000000000000000000000000000000ffffffffffffffffff000000000000000000,0x000000000000000000ffffffffffffffffff000000000000000000000000000000000000,0xffffffffffffffffff000000000000000000000000000000000000000000000000000000 \
  --kill-on-bad-exit=1 \
  --wait=0 \
  --export=ALL \
  --mpi=pmi2 \
  --job-name=train.ed17072c \
  --label \
  --output=RUN_DIR/out/node-%4n.log \
  --network=disable_rdzv_get \
  '--distribution=*:block' \
  /bin/sh RUN_DIR/rank.sh
w_code=$?

# Caches of the ranks are removed from every node.
srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --distribution=block:block --overlap --mem=0 --cpu-bind=none --gres=none --kill-on-bad-exit=0 --wait=0 --export=ALL --job-name=train-end /bin/rm -rf /tmp/windlass-"${WINDLASS_UID-}"-"${WINDLASS_JOB_ID-}"
echo "$w_code" > RUN_DIR/exit_code
exit $w_code
