#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Adam's own second moment beside the factored one, for a transformer at 1/128 of the bytes. --help tells the options.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/experiment.bash"

experiment second_moment "$@"
