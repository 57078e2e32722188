#!/usr/bin/env bash
# A Slurm of your own on this machine, as long as you need it: scripts/local-slurm.sh [-n NODES] [COMMAND…], as root.
# Opens a shell (or runs the command) in which sbatch, srun and sinfo work; when it ends, every daemon, job and mount is
# gone. Nothing of a Slurm that the machine may have is touched. Needs Debian's slurm-wlm and munge.
set -euo pipefail
nodes=2
if [ "${1:-}" = -n ]; then nodes=${2:?how many nodes}; shift 2; fi
case $nodes in *[!0-9]* | '') echo "-n takes a number, not '$nodes'" >&2; exit 2 ;; esac
[ "$(id -u)" = 0 ] || { echo "daemons of Slurm are started as root: sudo $0" >&2; exit 2; }
PATH=$PATH:/usr/sbin:/sbin
for program in slurmctld slurmd munged unshare; do
  command -v "$program" >/dev/null && continue
  echo "$program is missing: scripts/debian-packages.sh slurm-wlm munge" >&2
  exit 2
done

if [ "${LOCAL_SLURM_FOLDER:-}" = "" ]; then # outside: a folder, and namespaces that take everything with them
  folder=$(mktemp -d /tmp/local-slurm.XXXXXX)
  trap 'rm -rf "$folder"' EXIT
  code=0
  LOCAL_SLURM_FOLDER=$folder unshare --mount --pid --fork --kill-child --mount-proc "$0" -n "$nodes" "$@" || code=$?
  exit "$code"
fi

folder=$LOCAL_SLURM_FOLDER
unset LOCAL_SLURM_FOLDER
names=() words=$(slurmd -C | head -1 | tr ' ' '\n' | grep -v ^NodeName= | tr '\n' ' ')
cp /etc/hosts "$folder/hosts"
port() { python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'; }
for number in $(seq 1 "$nodes"); do
  name=$(printf 'node%d' "$number")
  names+=("$name")
  echo "127.0.1.$((100 + number)) $name" >>"$folder/hosts"
  mkdir "$folder/spool.$name"
  echo "NodeName=$name NodeHostname=$(hostname) NodeAddr=127.0.1.$((100 + number)) Port=$(port) $words" >>"$folder/nodes"
done
mount --bind "$folder/hosts" /etc/hosts
mkdir "$folder/state"
cat >"$folder/slurm.conf" <<B
ClusterName=local
FirstJobId=$((RANDOM % 11000 + 1))
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$(port)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=5
MpiDefault=none
MailProg=/bin/true
$(cat "$folder/nodes")
PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP
B
(umask 077 && head -c 128 /dev/urandom >"$folder/munge.key")
export SLURM_CONF=$folder/slurm.conf
munged --force --socket="$folder/munge.socket" --key-file="$folder/munge.key" --pid-file="$folder/munged.pid" \
  --log-file="$folder/munged.log" --seed-file="$folder/munged.seed"
slurmctld -f "$SLURM_CONF"
for name in "${names[@]}"; do slurmd -f "$SLURM_CONF" -N "$name"; done
for _ in $(seq 1 150); do
  [ "$(sinfo -h -N -o %t 2>/dev/null | grep -c '^idle$')" = "$nodes" ] && break
  sleep 0.2
done
if [ "$(sinfo -h -N -o %t 2>/dev/null | grep -c '^idle$')" != "$nodes" ]; then
  echo "Slurm did not come up within 30 s:" >&2
  tail -n 5 "$folder"/*.log >&2
  exit 1
fi
code=0
if [ $# -gt 0 ]; then
  "$@" || code=$?
else
  echo "$nodes nodes of a Slurm on this machine: sinfo, sbatch, srun. Leave it with exit: it ends with this shell." >&2
  bash -i || code=$?
fi
exit "$code"
