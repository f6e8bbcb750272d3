#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What is sent of local steps, uncompressed, in bits and sparse, for a transformer. --arms, --local-steps and --inner choose
# a part of it; --help tells the options.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/experiment.bash"

experiment outer "$@"
