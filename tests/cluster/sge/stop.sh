#!/bin/bash
# stop.sh DIR: end the Grid Engine that start.sh DIR started, with all its jobs, and nothing else.
set -uo pipefail
dir=$1 prefix=$(cat "$1/prefix")
. "$(dirname "$(readlink -f "$0")")/../network/machine.sh"

for name in $(ls "$dir/pids"); do end_machine "$name"; done
"$network" "$prefix" down
