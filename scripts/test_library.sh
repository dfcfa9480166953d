#!/bin/bash
# Tests the library (DataParallel, communicators, optimizers, recomputation,
# tensor parallelism, the snippets of the documents, random programs against
# plain torch): in the release build, under ThreadSanitizer, and on a libtorch
# 2.x.
#   scripts/test_library.sh
#   FUZZ_SECONDS=60        # of random programs with other seeds than the tests'
#   BRIGADE_TORCH=FOLDER   # a libtorch 2.x, or the torch folder of a Python;
#                          # default: that of build/venv-cuda or
#                          # build/venv-ecosystem, where there is one
# A part that cannot run here is skipped, and says why; a libtorch that was
# named and cannot be built with is a failure.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1  # ranks are threads
status=0
say() { echo "test_library: $*"; }

# part NAME BUILD_FOLDER TESTS TARGET...: builds and runs the tests of that
# regular expression, by the command in `prefix`.
prefix=()
part() {
  local name=$1 build=$2 tests=$3
  shift 3
  say "$name"
  if ! cmake --build "$build" --target "$@"; then
    say "$name does not build"
    status=1
    return
  fi
  "${prefix[@]}" scripts/run_tests.sh "$build" -R "^($tests)\$" || status=1
}

torch=${BRIGADE_TORCH:-}  # each part says for itself what it builds with
unset BRIGADE_TORCH
threaded='data_parallel|sharding|wrap|comm|optim'
threaded_targets=(test_data_parallel test_sharding test_wrap test_comm test_optim)
all="$threaded|model|tensor_parallel"
all_targets=("${threaded_targets[@]}" test_model test_tensor_parallel)

cmake --preset release >/dev/null || exit 1
own=(fuzz_library)
has_mpi=
if cmake --build build/release --target help | grep '^test_mpi:' >/dev/null; then
  own+=(test_mpi)
  has_mpi=yes
fi
part "release" build/release "$all|snippets|mpi_[24]_ranks" \
  "${all_targets[@]}" "${own[@]}"
say "random programs, for ${FUZZ_SECONDS:-60} seconds"
build/release/fuzz_library "${FUZZ_SECONDS:-60}" || status=1
if [ -n "$has_mpi" ]; then
  say "random programs over MPI, for ${FUZZ_SECONDS:-60} seconds"
  tests/mpi/run_under_mpi.sh 4 build/release/fuzz_library \
    "${FUZZ_SECONDS:-60}" 100000 || [ $? -eq 77 ] || status=1
fi

# libtorch's own code is not instrumented: cmake/tsan.supp. GCC 12's
# ThreadSanitizer wants its memory free, which kernels that randomise addresses
# by many bits do not grant.
if setarch -R true 2>/dev/null; then
  prefix=(setarch -R)
fi
if cmake --preset tsan -DBRIGADE_UNITY=ON >/dev/null; then
  part "ThreadSanitizer" build/tsan "$threaded" "${threaded_targets[@]}"
else
  say "skipped ThreadSanitizer: the preset does not configure here (see above)"
fi
prefix=()

named=$torch
for python in build/venv-cuda/bin/python build/venv-ecosystem/bin/python; do
  if [ -z "$torch" ] && [ -x "$python" ]; then
    torch=$("$python" -c \
      'import torch, pathlib; print(pathlib.Path(torch.__file__).parent)' ||
      true)
  fi
done
if [ -z "$torch" ]; then
  say "skipped libtorch 2.x: none here; name one by BRIGADE_TORCH, or run" \
    "scripts/build_cuda.sh or make test-ecosystem, which install one"
# --fresh: CMake remembers where the last libtorch was.
elif BRIGADE_TORCH=$torch cmake --fresh --preset cuda >/dev/null; then
  part "libtorch in $torch" build/cuda "$all" "${all_targets[@]}"
elif [ -n "$named" ]; then
  say "libtorch in $torch cannot be built with here (see above)"
  status=1
else
  say "skipped libtorch 2.x: $torch cannot be built with here (see above)"
fi
if [ $status -eq 0 ]; then say "passed"; else say "FAILED"; fi
exit $status
