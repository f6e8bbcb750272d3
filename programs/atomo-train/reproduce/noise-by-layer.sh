#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the noise in each layer's messages costs, where a transformer is trained in rounds of local steps. --policy, --inner and
# --local-steps choose what; --help tells the options.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/experiment.bash"

experiment noise_by_layer "$@"
