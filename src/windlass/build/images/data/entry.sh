#!/bin/sh
# Entry point of images that windlass builds. Started without windlass, with the host's libfabric bound to /host/lib and
# its /usr to /host/usr, it puts the host's libfabric and libcxi in front of the image's own and what they need behind
# all of it. `windlass run` does this itself, before the container starts, and does not need it.
uid=$(id -u)
parent=${TMPDIR:-/tmp}
folder=$parent/windlass-host-libs-$uid-$$

# Folders of processes that are gone; this process keeps its number when it becomes the command.
for old in "$parent/windlass-host-libs-$uid-"*; do
  if [ ! -d "$old" ] || [ ! -O "$old" ] || [ -L "$old" ]; then continue; fi
  kill -0 "${old##*-}" 2>/dev/null || rm -rf "$old"
done

first_of() {  # the first folder of the others that has the file named first
  name=$1
  shift
  for place in "$@"; do
    [ -e "$place/$name" ] && { echo "$place"; return 0; }
  done
  return 1
}

swap() {
  host=$(first_of libfabric.so.1 /host/lib /host/lib64 /host/usr/lib64 /host/usr/lib/*-linux-gnu) || return 0
  rm -rf "$folder"
  mkdir -m 700 "$folder" || return 0
  behind=$host
  for library in "$host"/libfabric.so*; do ln -s "$library" "$folder/"; done
  if cxi=$(first_of libcxi.so.1 /host/lib /host/lib64 /host/usr/lib64 /host/usr/lib/*-linux-gnu); then
    for library in "$cxi"/libcxi*.so*; do ln -s "$library" "$folder/"; done
    behind=$behind:$cxi
  fi
  # The image's own folders by name: the loader looks there before the host's, so that the C library stays the image's.
  own=
  for place in /lib/*-linux-gnu /usr/lib/*-linux-gnu /lib64 /usr/lib64 /usr/local/lib; do
    [ -d "$place" ] && own=${own:+$own:}$place
  done
  for place in /host/usr/lib64 /host/usr/lib/*-linux-gnu /host/usr/local/lib64; do
    [ -d "$place" ] && behind=$behind:$place
  done
  path=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}${own:+:$own}:$behind
  # Asks the loader itself: a missing library or a glibc that is too old shows here and not in a thousand ranks.
  said=$(LD_LIBRARY_PATH=$path LD_PRELOAD=$folder/libfabric.so.1 /bin/sh -c : 2>&1)
  if [ -n "$said" ]; then
    echo "windlass-entry: the host's libfabric does not fit this image, going on with the image's own:" >&2
    echo "  $said" >&2
    rm -rf "$folder"
    return 0
  fi
  export LD_LIBRARY_PATH="$path"
  # Providers that are files of their own belong to the libfabric that loads them.
  if [ -d "$host/libfabric" ]; then export FI_PROVIDER_PATH="$host/libfabric"; else unset FI_PROVIDER_PATH; fi
}

# CUDA's compatibility libraries: in front where the host's driver is older than this image's CUDA needs, out of the way
# where it is as new as they are, because there they break CUDA. In between the image's own choice stays.
compat() {
  { read -r driver </sys/module/nvidia/version; } 2>/dev/null || return 0
  for place in /usr/local/cuda/compat/lib.real /usr/local/cuda/compat/lib /usr/local/cuda/compat; do
    for library in "$place"/libcuda.so.*.*; do [ -e "$library" ] && break 2; done
  done
  [ -e "$library" ] || return 0
  own=${library##*/libcuda.so.}
  own=${own%%.*} driver=${driver%%.*} first=450
  [ "$own" -lt 525 ] || first=525
  [ "$own" -lt 580 ] || first=580
  if [ "$driver" -ge "$own" ]; then
    kept='' rest=${LD_LIBRARY_PATH-}:
    while [ -n "$rest" ]; do
      part=${rest%%:*} rest=${rest#*:}
      case $part in '' | /usr/local/cuda*/compat | /usr/local/cuda*/compat/*) ;; *) kept=${kept:+$kept:}$part ;; esac
    done
    export LD_LIBRARY_PATH="$kept"
  elif [ "$driver" -lt "$first" ]; then
    export LD_LIBRARY_PATH="$place${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  fi
}

compat
swap
[ $# -gt 0 ] || set -- /bin/sh
exec "$@"
