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
w_load PrgEnv-gnu/8.5.0
w_load rocm/5.7.1
w_load craype-accel-amd-gfx90a
w_load gcc-native/12.3
w_load cray-mpich/8.1.28
w_load libtool
set -u

LIBFABRIC=${LIBFABRIC:-/opt/cray/libfabric/1.15.2.0}
GPU_HOME=/opt/rocm-5.7.1

# Before 6.0 RCCL lies in its own folder, GPU_HOME/rccl, and the plugin is aws-ofi-rccl.
git init -q "$SRC/aws-ofi-rccl"
git -C "$SRC/aws-ofi-rccl" fetch -q --depth 1 https://github.com/ROCm/aws-ofi-rccl 17d41cbf5618536c4b1076d29748416ab307040f
git -C "$SRC/aws-ofi-rccl" checkout -q 17d41cbf5618536c4b1076d29748416ab307040f
cd "$SRC/aws-ofi-rccl"
./autogen.sh
export LD_LIBRARY_PATH="$GPU_HOME/hip/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
CC=hipcc CFLAGS="-I$GPU_HOME/rccl/include" ./configure --prefix="$PREFIX" --with-libfabric="$LIBFABRIC" \
  --with-rccl="$GPU_HOME" --with-hip="$GPU_HOME/hip" --with-mpi="${MPICH_DIR:?load cray-mpich}" \
  --enable-trace
make -j 8
make install

ls "$PREFIX"/lib/lib*ccl-net*.so
# NCCL and RCCL find the plugin by the search path alone.
echo "add to the job, or give windlass run --env-prepend LD_LIBRARY_PATH=$PREFIX/lib:"
# shellcheck disable=SC2016
echo 'export LD_LIBRARY_PATH='"$PREFIX"'/lib:$LD_LIBRARY_PATH'
