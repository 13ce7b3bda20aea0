#!/bin/bash
# Install the schedulers that tests/cluster runs on; needs root on Debian, does nothing elsewhere.
set -euo pipefail

skip() {
  echo "skipped: installing Slurm and Grid Engine needs root on Debian, and $1"
  exit 0
}
[ "$(id -u)" = 0 ] || skip "this is $(id -un)"
[ -r /etc/os-release ] && grep -qx 'ID=debian' /etc/os-release || skip "this is another system"

# Not slurm-wlm-emulator: its alternatives take over /usr/sbin/slurmd.
packages=(slurmctld slurmd slurm-client munge
  gridengine-master gridengine-exec gridengine-client openssh-server iproute2 procps bindfs
  gcc libc6-dev) # the last for the stand-in of NVML
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$' || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

export DEBIAN_FRONTEND=noninteractive
# No daemons for this machine as a whole: the tests start private ones.
if [ ! -e /usr/sbin/policy-rc.d ]; then
  trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
  chmod +x /usr/sbin/policy-rc.d
fi
echo "gridengine-master shared/gridengineconfig boolean false" | debconf-set-selections
apt=(apt-get -qq -o DPkg::Lock::Timeout=120 -o Acquire::Retries=3)
"${apt[@]}" update
"${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null </dev/null
