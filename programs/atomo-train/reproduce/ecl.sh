#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Edge-consensus learning of logistic regression on Fashion-MNIST beside the published accuracies. --help tells the options.
# First the length and the pixels of the published curves, then those of the published run scripts, then standardised pixels.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/experiment.bash"

experiment ecl --model logistic --graph "$reproduce/double-ring.json" --graph "$reproduce/random.json" --batch 100 --lr 0.002 \
  --setting 70400,plain --setting 1000,plain --setting 1000,standardised "$@"
