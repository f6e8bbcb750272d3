#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A policy file with a codec a layer beside one codec for all layers at the same bytes. --help tells the options.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/experiment.bash"

experiment codec_per_layer --policy "$reproduce/codec-per-layer.policy" --model lenet --steps 800 --batch 32 \
  --lr 0.05 "$@"
