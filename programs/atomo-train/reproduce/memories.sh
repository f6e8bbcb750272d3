#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Codecs with and without a memory beside each other, for a transformer at 1/64, 1/128 and 1/256 of the bytes. --arms,
# --bits and --steps choose a part of it; --help tells the options.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/experiment.bash"

experiment memories "$@"
