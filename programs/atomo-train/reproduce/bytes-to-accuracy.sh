#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ATOMO beside QSGD and TernGrad at equal bytes: bytes to a target accuracy.
# The first argument is the model, lenet (when left out) or resnet20; --help tells the options.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/experiment.bash"

model=lenet
case "${1:-}" in
  lenet | resnet20) model=$1; shift ;;
  -* | "") ;;
  *) printf "bytes-to-accuracy.sh: unknown model '%s'; lenet and resnet20 are accepted\n" "$1" >&2; exit 2 ;;
esac
case "$model" in
  lenet) experiment bytes_to_accuracy --model lenet --steps 800 --batch 32 --lr 0.02 "$@" ;;
  resnet20) experiment bytes_to_accuracy --model resnet20 --steps 600 --batch 16 --lr 0.05 --tests 20 "$@" ;;
esac
