# SPDX-License-Identifier: Apache-2.0
# Sourced by the commands here. Runs Python programs in tools/, with the Python that ATOMO_PYTHON names, or the distribution's,
# which has matplotlib.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
reproduce=$repository/programs/atomo-train/reproduce
python=${ATOMO_PYTHON:-/usr/bin/python3}
[ -x "$python" ] || [ -n "${ATOMO_PYTHON:-}" ] || python=python3

# experiment NAME OPTION...: experiments/NAME.py
experiment() {
  PYTHONPATH="$repository/programs/atomo-train/tools" exec "$python" -m "experiments.$1" "${@:2}"
}

# compare OPTION...: compare.py
compare() {
  exec "$python" "$repository/programs/atomo-train/tools/compare.py" "$@"
}
