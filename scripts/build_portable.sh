#!/bin/bash
# Makes a folder, packed, with the program, benchmarks and tests for a PyTorch
# that is installed elsewhere: it runs on any Linux with glibc 2.35 without
# packages, compiler or network.
#
#   scripts/build_portable.sh [OUTPUT_FOLDER]   # default build
#   BRIGADE_TORCH=FOLDER                        # see scripts/package_for_torch.sh
# There:
#   tar xf brigade-portable-*.tar.gz
#   export BRIGADE_TORCH=.../site-packages/torch
#   ./brigade-portable/run doctor
#   ./brigade-portable/accept
# Prints the file's path last.
set -euo pipefail
cd "$(dirname "$0")/.."
output=${1:-build}
programs=(brigade bench_step test_comm test_data_parallel test_kernels_cuda)
work=build/portable
folder=$work/brigade-portable
most_bytes=60000000

rm -rf "$work"
scripts/install_dependencies.sh build package
scripts/package_for_torch.sh "$folder" "${programs[@]}"
. "$folder/needs"
cp LICENSE packaging/portable/{run,accept,features} bench/peers/pytorch_step.py "$folder"

# Loaded late, by downloads; a wheel leaves it to the system.
# /sbin is not where every user's shell looks.
cp -L "$(/sbin/ldconfig -p | sed -n 's/.*libcurl\.so\.4 .*=> //p' | head -1)" \
  "$folder/lib"
# What the programs load, less what every system and every PyTorch has.
from_system='/(libc|libm|libdl|librt|libutil|libpthread|libresolv|libstdc\+\+|libgcc_s|libgomp|ld-linux-[a-z0-9-]+)\.so'
torch=$(sed -n 's/^BRIGADE_TORCH:[A-Z]*=//p' \
  "build/torch-${needs_torch%%+*}/CMakeCache.txt")
ldd "$folder"/bin/* "$folder"/lib/* | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' |
  sort -u | grep -Ev "$from_system" | grep -v -e "^${torch%/*}/" -e libdnnl |
  while read -r library; do
    cp -nL "$library" "$folder/lib"
  done
chmod u+w "$folder"/lib/*
strip --strip-unneeded "$folder"/lib/*.so* 2>/dev/null || true
# With these too.
scripts/check_glibc.sh "$needs_glibc" "$needs_glibcxx" "$folder"/lib/*.so*
for file in "$folder"/bin/*; do
  patchelf --set-rpath '$ORIGIN/../lib' "$file"
done
for file in "$folder"/lib/*; do
  patchelf --set-rpath '$ORIGIN' "$file"
done

tarball=$output/brigade-portable-torch$needs_torch-$needs_machine.tar.gz
mkdir -p "$output"
tar -C "$work" --owner=0 --group=0 -czf "$tarball" brigade-portable
bytes=$(stat -c %s "$tarball")
if [ "$bytes" -gt "$most_bytes" ]; then
  echo "build_portable: $tarball has $bytes bytes, at most $most_bytes are meant" >&2
  exit 1
fi
echo "$tarball ($((bytes / 1000000)) MB)"
