#!/bin/bash
# Holds Brigade's files against the Python ecosystem's own readers and writers:
# transformers, tokenizers, safetensors, TensorBoard, gguf, peft, trl; its evaluation
# against lm-evaluation-harness; optimizers against bitsandbytes and schedulefree;
# and its ranks under torchrun. Needs a built program.
#   scripts/test_ecosystem.sh BUILD_FOLDER
#   VENV=FOLDER        # default build/venv-ecosystem; some 6 GB with torch
# Skips, with exit code 77, where the environment cannot be made.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: scripts/test_ecosystem.sh BUILD_FOLDER}
venv=${VENV:-$PWD/build/venv-ecosystem}
packages=(torch==2.14.1 transformers==5.23.0 tokenizers==0.23.3
  safetensors==0.8.0 tensorboard==2.21.0 "lm_eval[hf]==0.4.13" sentencepiece
  protobuf numpy gguf==0.19.0 pyarrow==26.0.1 peft==0.21.2 trl==1.16.0
  bitsandbytes==0.50.2 schedulefree==1.4.1)
made=$venv/.made-$(echo "${packages[@]}" | cksum | cut -d ' ' -f 1)

if ! [ -e "$made" ]; then
  echo "test_ecosystem: installing ${packages[*]} into $venv"
  if ! { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet \
    --disable-pip-version-check "${packages[@]}" &&
    touch "$made"; }; then
    echo "test_ecosystem: skipped: no Python environment can be made here" >&2
    exit 77
  fi
fi
programs=("$build/brigade")
# On PyTorch's own libtorch, if scripts/build_cuda.sh has built it.
if [ -x build/cuda/brigade ]; then
  programs+=(build/cuda/brigade)
fi
status=0
export TOKENIZERS_PARALLELISM=false
"$venv/bin/python" tests/ecosystem/harness_test.py "$build/brigade" || status=1
export HF_HUB_OFFLINE=1
for test in ecosystem regex foreign_files chat gguf peft preference sft distill \
  mup optimizers; do
  "$venv/bin/python" "tests/ecosystem/${test}_test.py" "$build/brigade" ||
    status=1
done
# Logits, losses and gradients of every architecture.
if [ -x "$build/tests/test_model" ]; then
  BRIGADE_TRANSFORMERS_PYTHON=$venv/bin/python "$build/tests/test_model" \
    --gtest_filter='*DecoderReference*' --gtest_brief=1 || status=1
fi
"$venv/bin/python" tests/ecosystem/torchrun_test.py "${programs[@]}" ||
  status=1
exit $status
