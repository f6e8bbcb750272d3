#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the tables of docs/results.md: 4 workers and a server, three seeds, the same steps for every codec.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/experiment.bash"

usage() {
  cat <<'TEXT'
usage: bash programs/atomo-train/reproduce/codecs.sh [lenet|resnet18|transformer]... [OPTION...]

Trains each model with every codec of its table in docs/results.md and writes bench/results/NAME.json, .md and .png.
All three without a name: about 80 minutes on 2 idle cores, 12 of them for LeNet. What has ended is kept in
build/reproduce and not trained again.

  OPTION...   of compare.py, and win over those here; --quick only sees that everything works

example: bash programs/atomo-train/reproduce/codecs.sh lenet --seeds 1 --out /tmp/lenet
TEXT
}

models=()
while [ $# -gt 0 ]; do
  case "$1" in
    lenet | resnet18 | transformer) models+=("$1") ;;
    --help | -h) usage; exit 0 ;;
    -*) break ;;
    *) usage >&2; printf "codecs.sh: unknown model '%s'; lenet, resnet18 and transformer are accepted\n" "$1" >&2; exit 2 ;;
  esac
  shift
done
[ ${#models[@]} -gt 0 ] || models=(lenet resnet18 transformer)

# table NAME OPTION...: one table, with the rest of the command line behind.
table() {
  local name=$1 out=$repository/bench/results/$1
  [[ " ${rest[*]} " != *" --quick "* ]] || out=$repository/build/reproduce/$name-quick
  (compare --workers 4 --seeds 1 2 3 --keep "$repository/build/reproduce/$name" --out "$out" "${@:2}" "${rest[@]}")
}

rest=("$@")
for model in "${models[@]}"; do
  case "$model" in
    lenet)
      table lenet-fashion-mnist --model lenet --steps 800 --batch 32 --lr 0.05 \
        --codec atomo:bits=1 --codec atomo:bits=0.25 --codec atomo:bits=0.125 --codec atomo:bits=0.0625 \
        --codec atomo:bits=0.25,atoms=rows --codec atomo:bits=0.125,atoms=rows \
        --codec qsgd:bits=2 --codec terngrad --codec sign:scale=mean --codec topk:keep=0.01 ;;
    resnet18)
      table resnet18-fashion-mnist --model resnet18 --steps 200 --batch 8 --lr 0.05 --tests 2 \
        --codec atomo:bits=0.5 --codec atomo:bits=0.25 ;;
    transformer)
      table transformer-cmake-manual --model transformer --optimizer adamw --lr 0.001 --warmup 50 --steps 300 --batch 8 --tests 2 \
        --codec atomo:bits=0.5 --codec atomo:bits=0.25 ;;
  esac
done
