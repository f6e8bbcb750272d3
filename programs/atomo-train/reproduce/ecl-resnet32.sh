#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Edge-consensus learning of a residual network on the published graphs, at a budget that two cores can carry. The first
# argument is the model: ecl-resnet32 (when left out), the published network, or resnet32, a smaller one of that name, on the
# double ring alone. --help tells the options.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/experiment.bash"

model=ecl-resnet32
case "${1:-}" in
  ecl-resnet32 | resnet32) model=$1; shift ;;
  -* | "") ;;
  *) printf "ecl-resnet32.sh: unknown model '%s'; ecl-resnet32 and resnet32 are accepted\n" "$1" >&2; exit 2 ;;
esac
case "$model" in
  # Tests of 8 nodes and their mean model over 10,000 samples would take longer than the training.
  ecl-resnet32) budget=(--graph "$reproduce/random.json" --batch 32 --lr 0.0005 --setting 48,standardised --tests 3 --test-samples 500) ;;
  resnet32) budget=(--batch 8 --lr 0.02 --setting 800,standardised --tests 3) ;;
esac
experiment ecl --model "$model" --graph "$reproduce/double-ring.json" --methods dsgd admm pdmm "${budget[@]}" "$@"
