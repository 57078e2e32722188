#!/usr/bin/env bash
# Runs a command with a real apptainer in its PATH: with-apptainer.sh ROOT COMMAND…, as root. ROOT is a Debian with
# apptainer, which older ones lack, in a folder; it is made where it is not there. The command itself runs on this
# machine; only `apptainer` enters the folder, by a mount namespace of its own, with this machine's files at their places.
set -euo pipefail
root=$(realpath -m "${1:?a folder for the Debian that has apptainer}")
shift
if [ ! -x "$root/usr/bin/apptainer" ]; then
  debootstrap --variant=minbase --include=ca-certificates "${APPTAINER_SUITE:-sid}" "$root"
  chroot "$root" apt-get install -y --no-install-recommends apptainer squashfuse
fi
[ -e "$root/etc/hosts" ] || echo "127.0.0.1 localhost" >"$root/etc/hosts"  # apptainer shows it inside
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Folders of this machine that a test may name; the rest of the root is the other Debian's.
cat >"$folder/enter" <<'B'
root=$1
shift
mount --rbind "$root" "$root"
for place in proc sys dev tmp home root work var/tmp; do
  if [ -d "/$place" ]; then mkdir -p "$root/$place" && mount --rbind "/$place" "$root/$place"; fi
done
here=$PWD
mkdir -p "$root/.old"
cd "$root" && pivot_root . .old && umount -l /.old && { cd "$here" 2>/dev/null || cd /; }
exec apptainer "$@"
B
cat >"$folder/apptainer" <<B
#!/bin/sh
# No privileges: containers of root would ask for capabilities that a machine in a sandbox has not.
export APPTAINER_NO_PRIVS=1 PATH=/usr/sbin:/usr/bin:/sbin:/bin
exec unshare --mount --propagation private sh "$folder/enter" "$root" "\$@"
B
chmod +x "$folder/apptainer"
PATH="$folder:$PATH" "$@"
