#!/bin/bash
# A Python environment for lumi (venv), made by windlass.
# torch for the machine's ROCm and network is in the site's images, which are read-only: what they lack goes into a venv
# that sees the image's packages beneath it. Source: Lumi-supercomputer/LUMI-AI-Guide, 2026-05-19
# Run it on a login node. ENV=/another/place bash FILE puts it elsewhere.
# note: /projappl holds 50 GB; an environment with torch has more than 20,000 files
# note: thousands of small files cost quota and time here: pack the venv into a squashfs file and bind that
# note: no local disk: /tmp is memory and counts against the job's (about 460 GB on standard-g, 64 GB on small-g without
# --mem=0 --exclusive). Home holds 20 GB and 100,000 files. Flash is about ten times faster than scratch and billed more
set -eo pipefail  # no -u: the scripts of modules and conda read unset variables

if [ -z "${ENV:-}" ]; then
  : "${ACCOUNT:?set it to your project, or set ENV}"
fi
ENV=${ENV:-"/projappl/${ACCOUNT}/${USER}/envs/torch"}
# Packages in ~/.local would hide those that are installed here.
export PYTHONNOUSERSITE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# `python -m` imports from the current folder: use an empty one, so that no project file is imported.
case $ENV in /*) ;; *) ENV=$PWD/$ENV ;; esac
[ ! -f "${IMAGE:-}" ] || IMAGE=$(readlink -f "$IMAGE")
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

# 2. the image beneath: the image's own Python must create the environment; it works only with that image
# Lumi-supercomputer/LUMI-AI-Guide, 2026-05-19
echo '== step 2 of 7: the image beneath'
IMAGE=${IMAGE:-$(printf '%s\n' /appl/local/laifs/containers/lumi-multitorch-*/lumi-multitorch-full-*.sif | sort -V | tail -n 1)}
inside() { singularity run -B /pfs -B "$(dirname "$ENV")" "$IMAGE" "$@"; }

# 3. a venv with the image's packages beneath: the image is read-only and lacks some packages; pip sees those it has and
# leaves them there
# Lumi-supercomputer/LUMI-AI-Guide, 2026-05-19
echo '== step 3 of 7: a venv with the image'"'"'s packages beneath'
# shellcheck disable=SC2016
inside sh -c 'eval "${WITH_CONDA:-}"; exec "$0" "$@"' python3 -m venv --system-site-packages "$ENV"
# shellcheck disable=SC2016
inside sh -c 'eval "${WITH_CONDA:-}"; exec "$0" "$@"' python3 -c 'import sys, sysconfig; to = "%s/lib/python%d.%d/site-packages/beneath.pth" % (sys.argv[1], *sys.version_info[:2]); sys.prefix == sys.base_prefix or open(to, "w").write(sysconfig.get_path("purelib") + "\n")' "$ENV"
py() { inside "$ENV/bin/python" "$@"; }

# 4. keep the torch version: a package that wants another torch must fail, not replace the one that fits the driver
echo '== step 4 of 7: keep the torch version'
py -m pip list --format=freeze | grep -iE '^(torch|pytorch-triton[a-z-]*)==' >"$ENV/constraints.txt" || true

# 5. mpi4py: compiled against the image's MPI: a wheel brings another one, which cannot talk to the launcher
# OLCF user documentation, software/analytics/pytorch_frontier.rst. Taken for all machines with Cray's compiler
# wrappers, 2026-07-22
echo '== step 5 of 7: mpi4py'
MPICC=mpicc py -m pip install -c "$ENV/constraints.txt" --no-cache-dir --no-binary=mpi4py mpi4py

# 6. deepspeed: its kernels are compiled in the job, where the devices are, and not now
echo '== step 6 of 7: deepspeed'
DS_BUILD_OPS=0 py -m pip install -c "$ENV/constraints.txt" deepspeed

# 7. import what was installed: an import that fails here would fail on every rank
echo '== step 7 of 7: import what was installed'
py -c 'import mpi4py, torch; print(torch.__version__)'

finished=yes
echo "made: $ENV"
# in a job: windlass run --container "$IMAGE" --python "$ENV"/bin/python train.py
# as one file: windlass env pack "$ENV" -o env.sqsh; windlass run --container "$IMAGE" --container-
# arg=--bind=env.sqsh:/user-software:image-src=/ --python /user-software/bin/python train.py
