#!/usr/bin/env bash
# Runs a command in a real Flux of four nodes on this machine: with-flux.sh PREFIX COMMAND…, as root. PREFIX holds
# bin/flux; CONTRIBUTING.md says how it is built. The command is the instance's initial program, on node1, and its exit
# code is ours. Nodes differ by their names only: /tmp, the network and the processes are this machine's.
set -euo pipefail
prefix=${1:?the folder with bin/flux}
shift
[ -x "$prefix/bin/flux" ] || { echo "no bin/flux in $prefix: CONTRIBUTING.md says how to build Flux" >&2; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
{ echo "127.0.0.1 localhost"; for n in 1 2 3 4; do echo "127.0.1.$((10 + n)) node$n"; done; } >"$folder/hosts"
cat >"$folder/broker" <<B
#!/bin/sh
exec unshare --uts --mount sh -c 'hostname node\$0 && mount --bind $folder/hosts /etc/hosts && exec "\$@"' \$((PMI_RANK + 1)) "\$@"
B
chmod +x "$folder/broker"
# Every node has all cores of this machine. Queues as sites have them.
cat >"$folder/flux.toml" <<B
[queues.batch]
[queues.debug]
[policy.jobspec.defaults.system]
queue = "batch"
B
env -i PATH="$prefix/bin:$PATH" HOME="$HOME" USER="${USER:-root}" LOGNAME="${USER:-root}" SHELL=/bin/bash LANG=C.UTF-8 \
  TERM=dumb FLUX_IPADDR_INTERFACE=lo GLOO_SOCKET_IFNAME=lo WINDLASS_TEST_REAL=flux \
  "$prefix/bin/flux" start --test-size=4 --test-hosts='node[1-4]' --wrap="$folder/broker" \
  -o,--config-path="$folder/flux.toml" sh -c 'flux queue start --all --quiet && exec "$@"' sh "$@"
