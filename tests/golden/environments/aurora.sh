#!/bin/bash
# A Python environment for aurora (venv), made by windlass.
# torch and its oneCCL come with the frameworks module; install other packages on top, in a venv with --system-site-
# packages. Source: ALCF user guide, aurora/data-science/python.md, 2026-08-19
# Run it on a login node. ENV=/another/place bash FILE puts it elsewhere.
# note: /lus/flare/projects/${ACCOUNT}/${USER}/envs/torch is on Lustre: fast enough for a few nodes, too slow for
# hundreds (import torch from Lustre: 1020 s on 8192 nodes). windlass run --cache ENV reads it once for all nodes; or
# windlass env pack and windlass stage
# note: /lus/flare holds 1 TB a project; an environment with torch has more than 20,000 files
# note: packages of the module need no cache. Those of the venv do beyond some hundred nodes (--cache, or the site's
# Copper)
# note: jobs start from /lus/flare, not from home. DAOS with daos_user_fs. An own environment on flare beyond 1000 nodes
# needs a cache (--cache, or the site's Copper)
set -eo pipefail  # no -u: the scripts of modules and conda read unset variables

if [ -z "${ENV:-}" ]; then
  : "${ACCOUNT:?set it to your project, or set ENV}"
fi
ENV=${ENV:-"/lus/flare/projects/${ACCOUNT}/${USER}/envs/torch"}
# Packages in ~/.local would hide those that are installed here.
export PYTHONNOUSERSITE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# `python -m` imports from the current folder: use an empty one, so that no project file is imported.
case $ENV in /*) ;; *) ENV=$PWD/$ENV ;; esac
cd /

finished=no
trap '[ "$finished" = yes ] || echo "not finished: remove $ENV, if it is there, and begin anew" >&2' EXIT

# 1. the place: a new folder, so that it contains no old files
echo '== step 1 of 7: the place'
if [ -e "$ENV" ] || [ -L "$ENV" ]; then
  echo "$ENV already exists: move it away, or choose another ENV" >&2
  exit 2
fi
mkdir -p "$(dirname "$ENV")"

# 2. the site's modules: the site's PyTorch with its oneCCL; install your own packages on top, in a venv with --system-
# site-packages
# ALCF user guide, aurora/data-science/python.md, 2026-08-19
echo '== step 2 of 7: the site'"'"'s modules'
if ! type module >/dev/null 2>&1; then
  for f in /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh /etc/profile.d/modules.sh /usr/share/lmod/lmod/init/bash /usr/share/modules/init/bash /opt/cray/pe/lmod/lmod/init/bash; do
    [ -r "$f" ] && . "$f" && break
  done
fi
w_load() { module load "$1" || { echo "windlass: module $1 does not load" >&2; exit 3; }; }
w_load frameworks

# 3. a venv on top of the site's packages: pip sees the module's packages and leaves them there
# ALCF user guide, aurora/data-science/python.md, 2026-08-19
echo '== step 3 of 7: a venv on top of the site'"'"'s packages'
python3 -m venv --system-site-packages "$ENV"
py() { "$ENV/bin/python" "$@"; }

# 4. keep the torch version: a package that wants another torch must fail, not replace the one that fits the driver
echo '== step 4 of 7: keep the torch version'
py -m pip list --format=freeze | grep -iE '^(torch|pytorch-triton[a-z-]*)==' >"$ENV/constraints.txt" || true

# 5. mpi4py: compiled with the site's compiler wrapper, so that it uses the site's MPI; a wheel knows only others
# ALCF user guide, aurora/data-science/python.md, 2026-08-19
echo '== step 5 of 7: mpi4py'
printf '#include <mpi.h>\n' | mpicc -E -x c - >/dev/null || { echo 'mpicc cannot compile for MPI here (no wrapper, or no mpi.h): load the MPI, or leave mpi4py out' >&2; exit 3; }
MPICC=mpicc py -m pip install -c "$ENV/constraints.txt" --no-cache-dir --no-binary=mpi4py mpi4py

# 6. deepspeed: its kernels are compiled in the job, where the devices are, and not now
echo '== step 6 of 7: deepspeed'
DS_BUILD_OPS=0 py -m pip install -c "$ENV/constraints.txt" deepspeed

# 7. import what was installed: an import that fails here would fail on every rank
echo '== step 7 of 7: import what was installed'
py -c 'import mpi4py, torch; print(torch.__version__)'

finished=yes
echo "made: $ENV"
# in a job: windlass run --activate "$ENV" train.py
# in a batch script: module load frameworks; source "$ENV"/bin/activate
# on many nodes: windlass run --activate "$ENV" --cache "$ENV" train.py
# on the nodes' own storage: windlass env pack "$ENV" -o torch.tar.gz; windlass stage torch.tar.gz --extract --to /tmp;
# windlass run --activate /tmp/torch train.py
