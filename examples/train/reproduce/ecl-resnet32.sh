#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Edge-consensus learning of a ResNet-32 with group normalisation at a budget that two cores can carry. --help tells the options.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/experiment.bash"

experiment ecl --model resnet32 --graph "$reproduce/double-ring.json" --batch 16 --lr 0.02 --setting 600,standardised --tests 3 "$@"
