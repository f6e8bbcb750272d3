#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Trains two networks, captures a gradient of each, and measures every codec's variance at equal bytes on it.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bash bench/variance.sh [--quick] [--check] [--model NAME]... [--capture FILE]... [--rates BITS...]
                              [--draws N] [--starts N] [--rounds N] [--costs-only] [--out PATH] [--help]

Installs and builds what it needs (release), trains ResNet-18 and a character transformer up to the step whose
gradient is kept, draws messages of every codec at 4, 2, 1, .5, .25 and .125 bits a parameter, and predicts their size and
error with the reference model in bench/reference. Then it times encoders beside an exact SVD of all layers and a step of
PowerSGD, on one thread. Writes PATH.txt, PATH.md, PATH.json and PATH.png.

  --quick          a small network, two rates, few codecs: under a minute after the build
  --check          exit 1 when a figure is away from its prediction: 3 % of the size, 5 % of the error
  --model NAME     lenet, resnet18 or transformer; may be repeated
  --capture FILE   gradients to measure on, .npz or .safetensors; then nothing is trained but what --model names
  --rates BITS...  bits a parameter
  --draws N        messages of each codec and rate, 8 by default
  --starts N       random starts that a sketch's prediction is the mean of, 4 by default
  --rounds N       of the table of times, 3 by default; 0 leaves it out
  --costs-only     the tables of times, and of what ranks that follow from earlier steps change, alone
  --out PATH       bench/results/variance by default
  --help           print this text

example: bash bench/variance.sh --capture gradients.npz --rates 1 0.25 --rounds 0 --out /tmp/mine
TEXT
}

for argument in "$@"; do
  case "$argument" in --help | -h) usage; exit 0 ;; esac
done

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=/usr/bin/python3
[ -x "$python" ] || python=python3
bash "$root/scripts/install.sh"
(cd "$root" && cmake --preset release >/dev/null)
cmake --build "$root/build/release" --target atomo_cli atomo-train

export BLOSC_NTHREADS=1
exec "$python" "$root/bench/variance.py" "$@"
