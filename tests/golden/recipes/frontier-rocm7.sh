#!/bin/bash
# The plugin of RCCL for libfabric, for a host of frontier, made by windlass from the spec pytorch-rocm and the site's
# facts.
# Not run here. Run it on a login node, in a folder that the compute nodes see.
set -e  # -u below: modules read unset variables

PREFIX=${PREFIX:-$PWD/aws-ofi-plugin}
SRC=${SRC:-$PWD/src}

# The site's compilers and MPI, as its own document loads them.
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
set -u

# The newest libfabric of the host, unless LIBFABRIC says another.
LIBFABRIC=${LIBFABRIC:-$(printf '%s\n' /opt/cray/libfabric/* | sort -V | tail -n 1)}
[ -e "$LIBFABRIC" ] || { echo "no libfabric in $LIBFABRIC" >&2; exit 1; }
GPU_HOME=/opt/rocm-7.1.1

# From 6.0 on RCCL lies in ROCm's own lib and include; aws-ofi-nccl has ROCm since 1.18.0.
git init -q "$SRC/aws-ofi-nccl"
git -C "$SRC/aws-ofi-nccl" fetch -q --depth 1 https://github.com/aws/aws-ofi-nccl 86ebeaf59a2348b22780023effdb682503747de7
git -C "$SRC/aws-ofi-nccl" checkout -q 86ebeaf59a2348b22780023effdb682503747de7
cd "$SRC/aws-ofi-nccl"
./autogen.sh
./configure --prefix="$PREFIX" --with-libfabric="$LIBFABRIC" --with-rocm="$GPU_HOME" --disable-tests
make -j 8
make install

ls "$PREFIX"/lib/lib*ccl-net*.so
# NCCL and RCCL find the plugin by the search path alone.
echo "add to the job, or give windlass run --env-prepend LD_LIBRARY_PATH=$PREFIX/lib:"
# shellcheck disable=SC2016
echo 'export LD_LIBRARY_PATH='"$PREFIX"'/lib:$LD_LIBRARY_PATH'
