#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Edge-consensus learning of resnet32, another network than the published one (ecl-resnet32), at a budget that two cores can carry. --help tells the options.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/experiment.bash"

experiment ecl --model resnet32 --graph "$reproduce/double-ring.json" --methods dsgd admm pdmm \
  --batch 8 --lr 0.02 --setting 800,standardised --tests 3 "$@"
