#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# D-PSGD on a ring beside all-reduce at equal epochs. --help tells the options.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/experiment.bash"

experiment dpsgd --model resnet20 --nodes 4 8 --steps 600 --batch 16 --lr 0.05 --tests 4 "$@"
