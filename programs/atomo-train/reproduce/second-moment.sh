#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What AdamW divides by, for a transformer at 1/128 of the bytes: its own second moment, the factored one, and controls.
# --arms, --lr and --seeds choose a part of it; --help tells the options.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/experiment.bash"

experiment second_moment "$@"
