#!/bin/bash
# setup.sh [ROOT]: install HTCondor in a folder of its own, once; needs root on Debian, and minutes.
#
# Debian 12 has no HTCondor, so this is a small Debian 13 below ROOT, in which start.sh runs it. To
# be rid of it, remove ROOT.
set -euo pipefail
root=${1:-/var/lib/espnet3-htcondor}
# What pyenv's and Debian's Python need at the least.
libraries=(libffi8 libssl3t64 libsqlite3-0 libbz2-1.0 liblzma5 libreadline8t64 libncursesw6)
export DEBIAN_FRONTEND=noninteractive

# From where this machine has its own packages.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -n 1)
eval "$(apt-config shell proxy Acquire::http::Proxy)"
[ -z "${proxy:-}" ] || export http_proxy=$proxy

command -v debootstrap >/dev/null || {
  apt-get -qq update
  apt-get -qq install -y --no-install-recommends debootstrap >/dev/null </dev/null
}
if [ ! -d "$root/usr" ] || [ -d "$root/debootstrap" ]; then # the latter if it did not end
  rm -rf "$root"
  debootstrap --variant=minbase trixie "$root" "$mirror" >/dev/null
fi
# No daemons: start.sh starts its own.
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod +x "$root/usr/sbin/policy-rc.d"
chroot "$root" dpkg --configure -a >/dev/null
chroot "$root" apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends htcondor \
  "${libraries[@]}" >/dev/null </dev/null
# HTCondor runs no jobs of root.
chroot "$root" id jobs >/dev/null 2>&1 || chroot "$root" useradd --no-create-home jobs
chmod 755 "$root/root"
touch "$root/.ready"
