#!/bin/bash
# Runs a program as the ranks of an MPI job on this machine.
#   run_under_mpi.sh RANKS PROGRAM [ARGUMENT...]
# Exits 77 where there is no mpirun.
set -euo pipefail
ranks=$1
shift
if ! command -v mpirun >/dev/null; then
  echo "mpirun is missing: install openmpi-bin"
  exit 77
fi
options=()
if mpirun --version 2>&1 | grep -q "Open MPI"; then
  # More ranks than cores, in a container's root.
  options+=(--oversubscribe)
  [ "$(id -u)" -ne 0 ] || options+=(--allow-run-as-root)
fi
exec mpirun "${options[@]}" -n "$ranks" "$@"
