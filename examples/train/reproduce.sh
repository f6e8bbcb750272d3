#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the table of the README: LeNet on Fashion-MNIST, 4 workers, three seeds, the same 800 steps for every codec.
# Writes bench/results/lenet-fashion-mnist.{json,md,png}. Options are those of compare.py and win over these.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=/usr/bin/python3
[ -x "$python" ] || python=python3
mkdir -p "$root/bench/results"
exec "$python" "$root/examples/train/compare.py" --workers 4 --model lenet --steps 800 --batch 32 --lr 0.05 \
  --seeds 1 2 3 --out "$root/bench/results/lenet-fashion-mnist" \
  --codec atomo:bits=1 --codec atomo:bits=0.5 --codec atomo:bits=0.25 --codec atomo:bits=0.125 \
  --codec qsgd:bits=2 --codec terngrad --codec sign:scale=mean --codec topk:keep=0.01 "$@"
