#!/bin/bash
# Refuses a build for which the disk has no space, before it starts.
#   scripts/check_space.sh BUILD_FOLDER MEGABYTES    # of the build when it is whole
set -euo pipefail
build=${1:?usage: scripts/check_space.sh BUILD_FOLDER MEGABYTES}
needed=${2:?usage: scripts/check_space.sh BUILD_FOLDER MEGABYTES}
# A full disk has no space for the folder itself.
present=0
[ ! -d "$build" ] || present=$(du -sm "$build" | cut -f1)
parent=$(realpath -m "$build")
until [ -d "$parent" ]; do
  parent=$(dirname "$parent")
done
free=$(df -Pm "$parent" | awk 'NR == 2 { print $4 }')
missing=$((needed - present - free))
if [ "$missing" -gt 0 ]; then
  echo "no space for a build: $build takes $needed MB and has $present, but" \
    "its disk has $free MB left; free $missing MB, or put the folder 'build'" \
    "on another disk: mkdir /ANOTHER/DISK/build && rm -rf build &&" \
    "ln -s /ANOTHER/DISK/build build" >&2
  exit 1
fi
