#!/usr/bin/env bash
# Installs what is missing of debian-packages.txt (or of the packages named as arguments). Changes nothing else: no
# service is started, and a machine where we may not install gets a clear word instead of an error, because tests of
# missing parts are skipped, visibly.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

if [ $# -gt 0 ]; then
  wanted=("$@")
else
  mapfile -t wanted < <(sed -e 's/#.*//' -e 's/[[:space:]]//g' -e '/^$/d' "$here/debian-packages.txt")
fi

if ! command -v dpkg-query >/dev/null; then
  echo "not a Debian system: cannot tell whether these are here: ${wanted[*]}" >&2
  echo "tests that miss one of them will be skipped" >&2
  exit 0
fi

missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "missing Debian packages: ${missing[*]}" >&2
  echo "install them as root (apt-get install ${missing[*]}); tests that miss one of them will be skipped" >&2
  exit 0
fi

# Debian starts a daemon as soon as its package is there. Ours are started by the tests, each for itself.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi

export DEBIAN_FRONTEND=noninteractive
echo "installing Debian packages: ${missing[*]}"
apt-get -q update || echo "apt-get update failed in part; going on with the package lists that are here" >&2
apt-get -q install -y --no-install-recommends -o Dpkg::Options::=--force-confold "${missing[@]}"
