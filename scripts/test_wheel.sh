#!/bin/bash
# Tests a wheel of scripts/build_wheel.sh in a fresh environment of Python: the
# program trains, generates, reports; a C++ project finds the library; another
# PyTorch is refused.
#
#   scripts/test_wheel.sh [WHEEL]   # default: the newest in build/wheels
#   TORCH_VENV=FOLDER               # an environment whose PyTorch is linked into
#                                   # the fresh one; default: pip installs it
set -euo pipefail
cd "$(dirname "$0")/.."
wheel=$(readlink -f "${1:-$(ls -t build/wheels/*.whl | head -1)}")
most_bytes=30000000
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "test_wheel: FAILED: $*" >&2
  exit 1
}
version=$(basename "$wheel" | sed 's/brigade-[0-9.]*+torch\([0-9.]*\)-.*/\1/')
bytes=$(stat -c %s "$wheel")
[ "$bytes" -le "$most_bytes" ] || fail "$wheel has $bytes bytes"

scripts/install_dependencies.sh package
python3 -m venv "$work/venv"
site=$("$work/venv/bin/python" -c \
  'import sysconfig; print(sysconfig.get_path("platlib"))')
if [ -n "${TORCH_VENV:-}" ]; then
  from=$("$TORCH_VENV/bin/python" -c \
    'import sysconfig; print(sysconfig.get_path("platlib"))')
  for name in "$from"/*; do
    [ -e "$site/$(basename "$name")" ] || ln -s "$name" "$site"
  done
fi
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "$wheel"
echo "test_wheel: installed $(basename "$wheel"), $((bytes / 1000000)) MB"
clean=(env -i HOME="$work" PATH="$work/venv/bin:/usr/bin:/bin" LANG=C.UTF-8
  OMP_NUM_THREADS=1)
brigade() { "${clean[@]}" brigade "$@"; }

# All that is loaded is the wheel's, PyTorch's, or on every system.
foreign=$(ldd "$site"/brigade/bin/brigade* | sed -n 's/.* => //p' |
  grep -v "^$site/" | grep -Ev '/(libc|libm|libdl|librt|libutil|libpthread|libresolv|libstdc\+\+|libgcc_s|libz)\.so' || true)
[ -z "$foreign" ] || fail "loaded from elsewhere: $foreign"

brigade --version
repository=$PWD
cd "$work"
head -c 300000 <(zcat /usr/share/doc/jargon-text/jargon.txt.gz) >text.txt
brigade prepare --input text.txt --train-tokenizer 512 --out data >/dev/null
cat >run.json <<JSON
{"model": {"config": {"architectures": ["LlamaForCausalLM"],
   "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96,
   "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
   "max_position_embeddings": 128, "rms_norm_eps": 1e-5}},
 "training": {"seq_length": 64, "total_train_steps": 10},
 "dataset": {"name": "$work/data"}, "logging": {"run_dir": "$work/run"}}
JSON
brigade train --config run.json --nproc 2 distributed.use_cpu=true >train.log ||
  fail "train: $(tail -3 train.log)"
grep 'Step: 10/10' train.log
brigade generate --run run --prompt hacker --max-tokens 8 >generated.txt
[ -s generated.txt ] || fail "generate wrote nothing"
brigade report --run run
brigade doctor --nproc 2 | tail -1
# libcurl is the system's, which goes together with the wheel's OpenSSL.
"${clean[@]}" HF_ENDPOINT=http://127.0.0.1:1 brigade create-config --download \
  --model_name some/model --out_dir configs >message 2>&1 || true
grep -q 'cannot download' message || fail "a download: $(cat message)"
# A launcher's ranks are the program itself, with no Python before it.
[ "$(brigade run -n 2 -- true; echo $?)" = 0 ] || fail "brigade run"

# The CMake package of a PyTorch with CUDA wants nvcc.
if command -v nvcc >/dev/null; then
  cmake -S "$repository/tests/consumer" -B consumer -DCMAKE_BUILD_TYPE=Release \
    -Dbrigade_DIR="$(brigade --cmake-dir)" >cmake.log 2>&1 ||
    fail "find_package(brigade): $(tail -20 cmake.log)"
  cmake --build consumer >cmake.log 2>&1 || fail "consumer: $(tail cmake.log)"
  consumer/consumer
else
  echo "test_wheel: without nvcc no C++ project is built"
fi

# Another PyTorch is refused with both versions.
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps \
  --target "$work/other" "$wheel"
mkdir other/torch
echo "__version__ = '1.0.0'" >other/torch/version.py
if "${clean[@]}" PYTHONPATH="$work/other" other/bin/brigade doctor 2>message; then
  fail "PyTorch 1.0.0 is accepted"
fi
grep -q "is 1.0.0, but this build is for $version" message ||
  fail "of another PyTorch it says: $(cat message)"
echo "test_wheel: passed"
