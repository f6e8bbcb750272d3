#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Rounds of several lengths at equal bytes a step, for a transformer: gradients at every step, or what 2, 4 or 8 local steps
# changed in as many times the bits. --bits and --local-steps choose a part of it; --help tells the options.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/experiment.bash"

experiment rounds "$@"
