#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the tables of the README: 4 workers and a server, three seeds, the same steps for every codec.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bash examples/train/reproduce.sh [lenet|resnet18|transformer]... [-- OPTION...]

Trains each model with every codec of its table of the README and writes bench/results/NAME.json, .md and .png.
All three without a name: about 80 minutes on 2 idle cores, 12 of them for LeNet.

  OPTION...   of compare.py, and win over those here

example: bash examples/train/reproduce.sh lenet -- --seeds 1 --out /tmp/lenet
TEXT
}

models=()
while [ $# -gt 0 ]; do
  case "$1" in
    lenet | resnet18 | transformer) models+=("$1") ;;
    --help | -h) usage; exit 0 ;;
    --) shift; break ;;
    *) usage >&2; printf "reproduce.sh: unknown model '%s'; lenet, resnet18 and transformer are accepted\n" "$1" >&2; exit 2 ;;
  esac
  shift
done
[ ${#models[@]} -gt 0 ] || models=(lenet resnet18 transformer)

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=/usr/bin/python3
[ -x "$python" ] || python=python3
mkdir -p "$root/bench/results"

# compare NAME OPTION...: one table.
compare() {
  local name=$1
  shift
  "$python" "$root/examples/train/compare.py" --workers 4 --seeds 1 2 3 --out "$root/bench/results/$name" "$@"
}

for model in "${models[@]}"; do
  case "$model" in
    lenet)
      compare lenet-fashion-mnist --model lenet --steps 800 --batch 32 --lr 0.05 \
        --codec atomo:bits=1 --codec atomo:bits=0.25 --codec atomo:bits=0.125 --codec atomo:bits=0.0625 \
        --codec atomo:bits=0.25,atoms=rows --codec atomo:bits=0.125,atoms=rows \
        --codec qsgd:bits=2 --codec terngrad --codec sign:scale=mean --codec topk:keep=0.01 "$@" ;;
    resnet18)
      compare resnet18-fashion-mnist --model resnet18 --steps 200 --batch 8 --lr 0.05 --tests 2 \
        --codec atomo:bits=0.5 --codec atomo:bits=0.25 "$@" ;;
    transformer)
      compare transformer-cmake-manual --model transformer --optimizer adamw --lr 0.001 --warmup 50 --steps 300 --batch 8 --tests 2 \
        --codec atomo:bits=0.5 --codec atomo:bits=0.25 "$@" ;;
  esac
done
