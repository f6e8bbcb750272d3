#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the tables of docs/results.md: 4 workers and a server, three seeds, the same steps for every codec.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/experiment.bash"

usage() {
  cat <<'TEXT'
usage: bash programs/atomo-train/reproduce/codecs.sh [lenet|catalogue|resnet18|transformer]... [OPTION...]

Trains each model with every codec of its table in docs/results.md and writes bench/results/NAME.json, .md and .png;
catalogue is LeNet with the codecs of docs/catalogue.md, for 120 steps. All without a name: about two hours on 2 idle cores, 12
minutes of them for LeNet. What has ended is kept in build/reproduce and not trained again.

  OPTION...   of compare.py, and win over those here; --quick only sees that everything works

example: bash programs/atomo-train/reproduce/codecs.sh lenet --seeds 1 --out /tmp/lenet
TEXT
}

models=()
while [ $# -gt 0 ]; do
  case "$1" in
    lenet | catalogue | resnet18 | transformer) models+=("$1") ;;
    --help | -h) usage; exit 0 ;;
    -*) break ;;
    *) usage >&2; printf "codecs.sh: unknown model '%s'; lenet, catalogue, resnet18 and transformer are accepted\n" "$1" >&2; exit 2 ;;
  esac
  shift
done
[ ${#models[@]} -gt 0 ] || models=(lenet catalogue resnet18 transformer)

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
    catalogue)
      table catalogue-lenet --model lenet --algorithm allgather --steps 120 --batch 32 --lr 0.05 --tests 3 \
        --codec atomo:bits=1 --codec qsgd:bits=2 --codec qsgd-elias:levels=4 --codec natural --codec minmax:bits=4 \
        --codec identity:dtype=e5m2 --codec sign:scale=means --codec drive:form=mse --codec eden:bits=2,form=unbiased \
        --codec codebook:levels=quantile,bits=2 --codec codebook:levels=lloyd,bits=2 --codec codebook:levels=log,bits=3 \
        --codec codebook:levels=cot,form=nearest,code=huffman,bits=3 --codec codebook:levels=ternary,form=nearest \
        --codec threshold:above=3,unit=rms --codec threshold:above=3,unit=rms,form=unbiased \
        --codec dgc-threshold:keep=0.01 --codec dgc-threshold:keep=0.01,form=unbiased \
        --codec lss:clusters=4 --codec lss:clusters=4,form=unbiased \
        --codec sketchml:buckets=128 --codec sketchml:buckets=128,form=unbiased \
        --codec countsketch:cells=0.1,rows=1 --codec countsketch:cells=0.1,rows=3,top=0.01 ;;
    resnet18)
      table resnet18-fashion-mnist --model resnet18 --steps 200 --batch 8 --lr 0.05 --tests 2 \
        --codec atomo:bits=0.5 --codec atomo:bits=0.25 ;;
    transformer)
      table transformer-cmake-manual --model transformer --optimizer adamw --lr 0.001 --warmup 50 --steps 300 --batch 8 --tests 2 \
        --codec atomo:bits=0.5 --codec atomo:bits=0.25 ;;
  esac
done
