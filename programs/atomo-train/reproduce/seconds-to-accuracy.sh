#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ATOMO beside QSGD and TernGrad at equal bytes, in seconds over shaped links. Takes root, or user namespaces; --help tells the
# options.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/experiment.bash"

experiment seconds_to_accuracy "$@"
