#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures memory's bandwidths and how far each codec is from them; roofline.py does the work and has the --help.
set -euo pipefail
python=/usr/bin/python3  # the one that scripts/install.sh installs matplotlib for
[ -x "$python" ] || python=python3
exec "$python" "$(dirname "${BASH_SOURCE[0]}")/roofline.py" "$@"
