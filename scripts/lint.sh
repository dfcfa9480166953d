#!/bin/bash
# The form of the sources, before any of them is built:
#   format     clang-format over all C++ files
#   includes   which module includes what (ARCHITECTURE.md)
#   sizes      no function of more than 80 lines outside the kernels
#   documents  links, paths, the README's length, plain English
#   tidy       clang-tidy over what changed
#   neon       the kernels compile for 64-bit Arm, where there is a compiler
# Goes on after a failure, so that one run shows everything.
#   scripts/lint.sh [BUILD_DIRECTORY]   # a configured one; default build/dev
set -uo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/dev}
failed=()

mapfile -d '' files < <(git ls-files -z '*.h' '*.cpp' '*.cu' '*.cuh')
printf '%s\0' "${files[@]}" |
  xargs -0 -P2 -n 50 clang-format-14 --dry-run -Werror || failed+=(format)
echo "format: ${#files[@]} files"
scripts/check_includes.py || failed+=(includes)
scripts/check_sizes.py || failed+=(sizes)
scripts/check_docs.py || failed+=(documents)
scripts/clang_tidy.py "$build" || failed+=(tidy)
scripts/check_neon.sh
status=$?
[ $status -eq 0 ] || [ $status -eq 77 ] || failed+=(neon)

if [ ${#failed[@]} -gt 0 ]; then
  echo "lint FAILED: ${failed[*]}"
  exit 1
fi
echo "lint passed"
