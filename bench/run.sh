#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures every codec beside a memcpy and beside what people take in its place; run.py does the work and has the --help.
set -euo pipefail
exec python3 "$(dirname "${BASH_SOURCE[0]}")/run.py" "$@"
