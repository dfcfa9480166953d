#!/bin/bash
# Refuses programs and libraries that need a newer glibc or libstdc++ than is
# promised.
#   scripts/check_glibc.sh GLIBC GLIBCXX FILE...    # e.g. 2.35 3.4.30
set -euo pipefail
usage='usage: scripts/check_glibc.sh GLIBC GLIBCXX FILE...'
most=("GLIBC_${1:?$usage}" "GLIBCXX_${2:?$usage}")
shift 2
for file; do
  symbols=$(objdump -T "$file")
  for allowed in "${most[@]}"; do
    highest=$(grep -oE "${allowed%%_*}_[0-9.]+" <<<"$symbols" | sort -uV | tail -1 || true)
    if [ "$(printf '%s\n' "$highest" "$allowed" | sort -V | tail -1)" != "$allowed" ]; then
      echo "check_glibc: $file needs $highest, but only $allowed is promised:" \
        "build on an older system (Debian 12)" >&2
      exit 1
    fi
  done
done
