#!/bin/bash
# What a wheel and a portable folder have in common: builds targets against the
# libtorch of an installed PyTorch, in build/torch-VERSION, and puts the
# programs, what they load and start.sh into a folder.
#
#   scripts/package_for_torch.sh FOLDER PROGRAM...
#   BRIGADE_TORCH=FOLDER   # PyTorch's folder torch; default: python3's
#   BRIGADE_JOBS=N         # compilers at a time; default: one per core
# The folder: bin/ (the programs), lib/ (oneDNN, and SentencePiece, which is
# loaded when it is first used), start.sh and `needs`, which start.sh reads.
# Without MPI: each cluster has its own.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:?usage: scripts/package_for_torch.sh FOLDER PROGRAM...}
shift
programs=("$@")

fail() {
  echo "package_for_torch: $*" >&2
  exit 1
}
# What start.sh promises of the system: Ubuntu 22.04 and Debian 12 have it.
most_glibc=2.35
most_glibcxx=3.4.30
cpu_flags=
if [ "$(uname -m)" = x86_64 ]; then
  cpu_flags='cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3'  # x86-64-v2
fi

if [ -z "${BRIGADE_TORCH:-}" ]; then
  BRIGADE_TORCH=$(python3 -c \
    'import torch, pathlib; print(pathlib.Path(torch.__file__).parent)' \
    2>/dev/null) || fail "no PyTorch: set BRIGADE_TORCH to the folder torch of" \
    "an installed one, or run in an environment whose python3 has one"
fi
BRIGADE_TORCH=$(realpath -m "$BRIGADE_TORCH")
export BRIGADE_TORCH
[ -f "$BRIGADE_TORCH/version.py" ] || fail "'$BRIGADE_TORCH' (BRIGADE_TORCH)" \
  "is no PyTorch: it has no version.py; name the folder torch in site-packages"
version=$(sed -n "s/^__version__ = '\(.*\)'.*/\1/p" "$BRIGADE_TORCH/version.py")
has_cuda=no
if [ -f "$BRIGADE_TORCH/lib/libtorch_cuda.so" ]; then
  has_cuda=yes
  command -v nvcc >/dev/null || fail "PyTorch $version is a CUDA build, with" \
    "which CMake wants nvcc: install the CUDA toolkit, or add its bin folder" \
    "(often /usr/local/cuda/bin) to PATH"
fi
build=build/torch-${version%%+*}
echo "package_for_torch: PyTorch $version in $BRIGADE_TORCH"
scripts/check_space.sh "$build" 2500
scripts/install_dependencies.sh build
if ! grep -qsx "BRIGADE_TORCH:PATH=$BRIGADE_TORCH" "$build/CMakeCache.txt"; then
  cmake --fresh --preset cuda -B "$build" -DBRIGADE_MPI=OFF
fi
targets=("${programs[@]/#brigade/brigade_cli}")
cmake --build "$build" --target "${targets[@]}" \
  -j "${BRIGADE_JOBS:-$(nproc)}"

rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/lib"
for program in "${programs[@]}"; do
  file=$build/$program
  [ -x "$file" ] || file=$build/tests/$program
  cp "$file" "$folder/bin"
  if [ "$program" = brigade ]; then
    cp "$build/brigade-torch" "$folder/bin"
  fi
done
cp "$build"/lib/libdnnl.so.* "$folder/lib"
if ! ldd "$folder/bin/brigade" | grep -q libsentencepiece; then
  for name in libsentencepiece libsentencepiece_train; do
    # Of this machine's kind, which ldconfig spells x86-64 and AArch64; /sbin is
    # not where every user's shell looks.
    library=$(/sbin/ldconfig -p |
      grep -i "$name\.so\.0 .*$(uname -m | tr _ -)" | sed 's/.*=> //;q' || true)
    [ -n "$library" ] || fail "ldconfig knows no $name.so.0"
    cp -L "$library" "$folder/lib"
  done
fi
strip --strip-unneeded "$folder"/bin/* "$folder"/lib/*.so*
for library in "$folder"/lib/*.so*; do
  patchelf --set-rpath '$ORIGIN' "$library"
done
# PyTorch's own libraries bring these, from where pip has put them.
for program in "$folder"/bin/*; do
  patchelf --print-needed "$program" | { grep -E '^lib(cudart|nvrtc)\.' || true; } |
    xargs -r -I{} patchelf --remove-needed {} "$program"
done

scripts/check_glibc.sh "$most_glibc" "$most_glibcxx" \
  "$folder"/bin/* "$folder"/lib/*.so*
cp packaging/start.sh "$folder"
cat >"$folder/needs" <<NEEDS
# What bin/ was built for. Read by start.sh.
needs_torch='$version'
needs_cuda=$has_cuda
needs_machine=$(uname -m)
needs_glibc=$most_glibc
needs_glibcxx=$most_glibcxx
needs_cpu_flags='$cpu_flags'
needs_torch_beside=no
NEEDS
