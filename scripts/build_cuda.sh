#!/bin/bash
# Builds Brigade against the libtorch inside a PyTorch of Python, a CUDA build
# with its own cuDNN and NCCL: makes the environment, configures preset "cuda",
# compiles, links, and says what the program does on this machine.
#
#   scripts/build_cuda.sh [--test]        # --test: the test suite on it as well
#   VENV=FOLDER                           # default build/venv-cuda
#   TORCH=2.14.1                          # the PyTorch
# Needs nvcc (a CUDA toolkit of PyTorch's CUDA version) on PATH, and 8 GB of
# disk. No GPU: what is built trains on CPUs where there is none.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-$PWD/build/venv-cuda}
version=${TORCH:-2.14.1}
build=build/cuda

say() { echo "build_cuda: $*"; }
if ! command -v nvcc >/dev/null; then
  echo "build_cuda: nvcc is not on PATH: install the CUDA toolkit, or add its" \
    "bin folder (often /usr/local/cuda/bin) to PATH" >&2
  exit 1
fi
scripts/install_dependencies.sh build test package

if ! "$venv/bin/python" -c "import sys, torch
sys.exit(torch.__version__.split('+')[0] != '$version')" 2>/dev/null; then
  say "installing PyTorch $version into $venv (some 3 GB)"
  # The venv module of whichever python3 has one.
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check \
    "torch==$version" numpy
fi
BRIGADE_TORCH=$("$venv/bin/python" -c \
  'import torch, pathlib; print(pathlib.Path(torch.__file__).parent)')
export BRIGADE_TORCH
say "libtorch $version in $BRIGADE_TORCH"

cmake --preset cuda
cmake --build "$build"

say "training on a GPU that is asked for:"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$build/brigade" prepare --input README.md --tokenizer bytes --out "$work/data" \
  >/dev/null
cat >"$work/run.json" <<JSON
{"model": {"config": {"architectures": ["LlamaForCausalLM"],
   "vocab_size": 259, "hidden_size": 64, "intermediate_size": 96,
   "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
   "max_position_embeddings": 128, "rms_norm_eps": 1e-5}},
 "training": {"seq_length": 64, "total_train_steps": 3},
 "dataset": {"name": "$work/data"},
 "logging": {"run_dir": "$work/run"}}
JSON
status=0
"$build/brigade" train --config "$work/run.json" distributed.use_cpu=false ||
  status=$?
if [ "$status" -ne 2 ]; then
  echo "build_cuda: expected a config error (exit code 2), got $status" >&2
  exit 1
fi
say "on the CPU:"
"$build/brigade" train --config "$work/run.json" --nproc 2 \
  distributed.use_cpu=true
"$build/brigade" doctor --nproc 2 --folder "$work"
if [ "${1:-}" = --test ]; then
  scripts/run_tests.sh "$build"
fi
