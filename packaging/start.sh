#!/bin/sh
# Starts a program of bin/ on the libtorch of an installed PyTorch, or says what
# this machine lacks for it, with exit code 1.
#
#   start.sh PROGRAM [ARGUMENT...]
#   BRIGADE_TORCH=FOLDER   # PyTorch's folder torch, or an unpacked libtorch;
#                          # default: the torch of python3. A wheel's programs
#                          # load the PyTorch beside them, if there is one.
#
# The file `needs` beside it, written by scripts/package_for_torch.sh, says what
# the programs were built for. Plain sh, and nothing that a bare system lacks.
set -eu
here=$(cd "$(dirname "$0")" && pwd -P)
. "$here/needs"

fail() {
  echo "brigade: $*" >&2
  exit 1
}

[ "$(uname -m)" = "$needs_machine" ] ||
  fail "this machine is a $(uname -m), but this build is for $needs_machine:" \
    "build from source here"

# "glibc 2.36"; musl's getconf does not know the name.
libc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || libc=
[ -n "$libc" ] ||
  fail "this system's C library is not glibc: use a system with glibc" \
    "$needs_glibc or later (Ubuntu 22.04, Debian 12), or a container of one"
version=${libc#glibc }
minor=${version#*.}
needs_minor=${needs_glibc#*.}
if [ "${version%%.*}" -lt "${needs_glibc%%.*}" ] ||
  { [ "${version%%.*}" -eq "${needs_glibc%%.*}" ] &&
    [ "${minor%%.*}" -lt "$needs_minor" ]; }; then
  fail "this system has glibc $version, but this build needs $needs_glibc or" \
    "later: use a newer system (Ubuntu 22.04, Debian 12) or a container of" \
    "one, or build from source here"
fi

flags=$(sed -n '/^flags/ { s/.*: //p; q; }' /proc/cpuinfo)
missing=
for flag in $needs_cpu_flags; do
  case " $flags " in
    *" $flag "*) ;;
    *) missing="$missing $flag" ;;
  esac
done
[ -z "$missing" ] ||
  fail "the processor '$(sed -n '/^model name/ { s/.*: //p; q; }' \
    /proc/cpuinfo)' lacks$missing, which x86-64-v2 has and this build needs:" \
    "use a processor of 2009 or later; a virtual machine may hide what its" \
    "host has (qemu: -cpu host)"

torch=${BRIGADE_TORCH:-}
beside=
if [ "$needs_torch_beside" = yes ] && [ -f "$here/../torch/version.py" ]; then
  beside=yes
  torch=$(dirname "$here")/torch
fi
if [ -z "$torch" ] && command -v python3 >/dev/null; then
  torch=$(python3 -c 'import importlib.util, os
spec = importlib.util.find_spec("torch")
print(os.path.dirname(spec.origin) if spec and spec.origin else "")')
fi
wanted="PyTorch $needs_torch"
install="pip install torch==${needs_torch%%+*}"
[ -n "$torch" ] ||
  fail "no PyTorch here, but this build needs $wanted: $install, or set" \
    "BRIGADE_TORCH to the folder torch of an installed one"
if [ -f "$torch/version.py" ]; then
  found=$(sed -n "s/^__version__ = '\(.*\)'.*/\1/p" "$torch/version.py")
elif [ -f "$torch/build-version" ]; then
  found=$(cat "$torch/build-version")
else
  fail "'$torch' (BRIGADE_TORCH) is no PyTorch: it has neither version.py nor" \
    "build-version; name the folder torch inside site-packages"
fi
[ "${found%%+*}" = "${needs_torch%%+*}" ] ||
  fail "the PyTorch in '$torch' is $found, but this build is for $needs_torch:" \
    "$install, set BRIGADE_TORCH to the folder torch of that version, or take" \
    "the build of Brigade for PyTorch ${found%%+*}"
if [ "$needs_cuda" = yes ] && ! [ -f "$torch/lib/libtorch_cuda.so" ]; then
  fail "the PyTorch in '$torch' is $found, without CUDA, but this build is for" \
    "$needs_torch, with CUDA: install that one (it also runs without a GPU)"
fi

if [ -z "$beside" ]; then
  LD_LIBRARY_PATH=$torch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export LD_LIBRARY_PATH
fi
program=$1
shift
exec "$here/bin/$program" "$@"
