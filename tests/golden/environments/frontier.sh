#!/bin/bash
# A Python environment for frontier (conda), made by windlass.
# the site's own document makes a conda environment from its miniforge3 module and takes torch from PyTorch's index for
# ROCm. Source: OLCF user documentation, software/analytics/pytorch_frontier.rst, 2026-07-22
# Run it on a login node. ENV=/another/place bash FILE puts it elsewhere.
# note: /lustre/orion/${ACCOUNT,,}/proj-shared/${USER}/envs/torch is on Lustre: fast enough for a few nodes, too slow
# for hundreds (start of a conda environment from Lustre: 51 s on 8 nodes). windlass run --cache ENV reads it once for
# all nodes; or windlass env pack and windlass stage
# note: Orion is purged after 90 days: keep a packed copy elsewhere. Import mpi4py before torch. For MPI without GPU
# support unload rocm before mpi4py is built
# note: NVMe at /mnt/bb/$USER only after --with nvme. Start of 8 nodes: 2 s from NVMe, 51 s from Orion, 236 s from NFS.
# Orion is purged after 90 days
set -eo pipefail  # no -u: the scripts of modules and conda read unset variables

if [ -z "${ENV:-}" ]; then
  : "${ACCOUNT:?set it to your project, or set ENV}"
fi
ENV=${ENV:-"/lustre/orion/${ACCOUNT,,}/proj-shared/${USER}/envs/torch"}
# Packages in ~/.local would hide those that are installed here.
export PYTHONNOUSERSITE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# `python -m` imports from the current folder: use an empty one, so that no project file is imported.
case $ENV in /*) ;; *) ENV=$PWD/$ENV ;; esac
cd /

finished=no
trap '[ "$finished" = yes ] || echo "not finished: remove $ENV, if it is there, and begin anew" >&2' EXIT

# 1. the place: a new folder, so that it contains no old files
echo '== step 1 of 8: the place'
if [ -e "$ENV" ] || [ -L "$ENV" ]; then
  echo "$ENV already exists: move it away, or choose another ENV" >&2
  exit 2
fi
mkdir -p "$(dirname "$ENV")"

# 2. the site's modules: the site's programming environment for torch 2.10 with ROCm 7.1
# OLCF user documentation, software/analytics/pytorch_frontier.rst, 2026-07-22
echo '== step 2 of 8: the site'"'"'s modules'
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

# 3. a conda environment with Python 3.10: the site's own document makes a conda environment from its miniforge3 module
# and takes torch from PyTorch's index for ROCm
# OLCF user documentation, software/analytics/pytorch_frontier.rst, 2026-07-22
echo '== step 3 of 8: a conda environment with Python 3.10'
conda create --yes --prefix "$ENV" python=3.10 pip
py() { "$ENV/bin/python" "$@"; }

# 4. torch 2.10.0 (rocm7.1): the site's document names it
# OLCF user documentation, software/analytics/pytorch_frontier.rst, 2026-07-22
echo '== step 4 of 8: torch 2.10.0 (rocm7.1)'
py -m pip install torch==2.10.0 --index-url https://download.pytorch.org/whl/rocm7.1
py -m pip install numpy

# 5. keep the torch version: a package that wants another torch must fail, not replace the one that fits the driver
echo '== step 5 of 8: keep the torch version'
py -m pip list --format=freeze | grep -iE '^(torch|pytorch-triton[a-z-]*)==' >"$ENV/constraints.txt" || true

# 6. mpi4py: compiled with the site's compiler wrapper, so that it uses the site's MPI; a wheel knows only others
# OLCF user documentation, software/analytics/pytorch_frontier.rst, 2026-07-22
echo '== step 6 of 8: mpi4py'
printf '#include <mpi.h>\n' | cc -E -x c - >/dev/null || { echo 'cc cannot compile for MPI here (no wrapper, or no mpi.h): load the MPI, or leave mpi4py out' >&2; exit 3; }
MPICC='cc -shared' py -m pip install -c "$ENV/constraints.txt" --no-cache-dir --no-binary=mpi4py mpi4py

# 7. deepspeed: its kernels are compiled in the job, where the devices are, and not now
echo '== step 7 of 8: deepspeed'
DS_BUILD_OPS=0 py -m pip install -c "$ENV/constraints.txt" deepspeed

# 8. import what was installed: an import that fails here would fail on every rank
echo '== step 8 of 8: import what was installed'
py -c 'import mpi4py, torch; print(torch.__version__)'

finished=yes
echo "made: $ENV"
# in a job: windlass run --activate "$ENV" train.py
# in a batch script: module load PrgEnv-gnu/8.7.0 cpe/26.03 miniforge3/23.11.0-0 rocm/7.1.1 craype-accel-amd-gfx90a;
# source activate "$ENV"
# on many nodes: windlass run --activate "$ENV" --cache "$ENV" train.py
# on the nodes' own storage: windlass env pack "$ENV" -o torch.tar.gz; windlass stage torch.tar.gz --extract --to
# /mnt/bb/${USER} --with nvme; windlass run --with nvme --activate /mnt/bb/${USER}/torch train.py
