#!/bin/bash
# stop.sh DIR: end the HTCondor that start.sh DIR started, with all its jobs, and nothing else.
set -uo pipefail
# All of it runs on the head, whose processes end with it.
"$(dirname "$(readlink -f "$0")")/../network/network.sh" "$(cat "$1/prefix")" down
