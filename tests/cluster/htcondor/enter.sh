#!/bin/bash
# enter.sh DIR COMMAND...: run a command in the pool of start.sh DIR, as its user `jobs`.
#
# There it sees /tmp, this repository and its Python at the same paths as outside.
set -euo pipefail
dir=$1
shift
here=$(dirname "$(readlink -f "$0")")
repository=$(readlink -f "$here/../../..")
# Of which the interpreter's folder may be anywhere.
python=$(dirname "$(dirname "$(readlink -f "$repository/.venv/bin/python")")")
exec "$here/../network/network.sh" "$(cat "$dir/prefix")" exec 0 unshare --mount bash -euc '
  root=$1 dir=$2
  shift 2
  mount --make-rprivate /
  while [ "$1" != -- ]; do
    case $1 in /usr | /usr/*) ;; *) mkdir -p "$root$1" && mount --rbind "$1" "$root$1" ;; esac
    shift
  done
  shift
  cp /etc/hosts "$root/etc/hosts"
  exec chroot "$root" setpriv --reuid jobs --regid jobs --clear-groups \
    env "HOME=$dir" USER=jobs "CONDOR_CONFIG=$dir/condor_config" \
    PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
' enter "$(cat "$dir/root")" "$dir" /proc /sys /dev /tmp "$repository" "$python" -- "$@"
