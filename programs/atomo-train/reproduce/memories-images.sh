#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sign, top-k and QSGD with and without a memory, for images.
# The first argument is the model, lenet (when left out) or resnet20; --help tells the options.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/experiment.bash"

model=lenet
case "${1:-}" in
  lenet | resnet20) model=$1; shift ;;
  -* | "") ;;
  *) printf "memories-images.sh: unknown model '%s'; lenet and resnet20 are accepted\n" "$1" >&2; exit 2 ;;
esac
case "$model" in
  lenet) experiment memories_images --model lenet --steps 800 --batch 32 "$@" ;;
  resnet20) experiment memories_images --model resnet20 --steps 600 --batch 16 "$@" ;;
esac
