#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches a data set of images from where it is published, checks it, and lays it out as atomo-train --data reads it.
# What is there already and right is not fetched again.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bash scripts/fetch-data.sh NAME [--to DIR] [--from URL]

NAME is mnist, fashion-mnist, cifar10, cifar100 or svhn. Files go to DIR, by default data/NAME.

  --to DIR    where the files go; what lies there is checked and not fetched again
  --from URL  take the files from here: a mirror that names them alike, or file:///FOLDER
  --help      print this text

Without a network the script says which files to put into DIR by hand; run it again to check and unpack them.

example: bash scripts/fetch-data.sh cifar10 --to data/cifar10
         mpirun -n 4 atomo-train --algorithm allgather --model resnet20 --data data/cifar10
TEXT
}

say() { printf 'fetch-data: %s\n' "$*"; }
fail() { printf 'fetch-data: %s\n' "$*" >&2; exit 1; }

# Sets `homes`, tried one after the other, and `files`, lines "name MD5". MD5 is what was published; it tells a damaged file, not a
# forged one. The script prints the SHA-256 of what it takes, for whoever wants to compare.
choose() {
  case $1 in
    mnist)
      # LeCun's page, which does not answer everybody any more, and PyTorch's copy. Sums: torchvision/datasets/mnist.py.
      homes=(http://yann.lecun.com/exdb/mnist https://ossci-datasets.s3.amazonaws.com/mnist)
      files='train-images-idx3-ubyte.gz f68b3c2dcbeaaa9fbdd348bbdeb94873
train-labels-idx1-ubyte.gz d53e105ee54ea40749a09fcbcd1e9432
t10k-images-idx3-ubyte.gz 9fb629c4189551a2d022fa330f9573f3
t10k-labels-idx1-ubyte.gz ec29112dd5afa0611ce80d1b7f02629c' ;;
    fashion-mnist)
      # Place and sums: the README of github.com/zalandoresearch/fashion-mnist. Debian's dataset-fashion-mnist packs the same
      # images anew, so its sums differ.
      homes=(http://fashion-mnist.s3-website.eu-central-1.amazonaws.com)
      files='train-images-idx3-ubyte.gz 8d4fb7e6c68d591d4c3dfef9ec88bf0d
train-labels-idx1-ubyte.gz 25c81989df183df01b3e8a0aad5dffbe
t10k-images-idx3-ubyte.gz bef4ecab320f06d8554ea6380940ec79
t10k-labels-idx1-ubyte.gz bb300cfdad3c16e7a12a480ee83cd310' ;;
    cifar10)
      # Place and sum: www.cs.toronto.edu/~kriz/cifar.html, binary version.
      homes=(https://www.cs.toronto.edu/~kriz)
      files='cifar-10-binary.tar.gz c32a1d4ab5d03f1284b67883e8d87530' ;;
    cifar100)
      # The same page.
      homes=(https://www.cs.toronto.edu/~kriz)
      files='cifar-100-binary.tar.gz 03b5dce01913d631647c71ecec9e9cb8' ;;
    svhn)
      # Place: ufldl.stanford.edu/housenumbers, format 2, which publishes no sums. Sums: torchvision/datasets/svhn.py.
      homes=(http://ufldl.stanford.edu/housenumbers)
      files='train_32x32.mat e26dedcc434d2e4c54c9b2d4a06d8373
test_32x32.mat eb5a983be6a315427106f1b164d9cef3' ;;
    *) fail "there is no data set '$1'; there are mnist, fashion-mnist, cifar10, cifar100 and svhn" ;;
  esac
}

sum_of() { md5sum "$1" | cut -d ' ' -f 1; }

# download URL FILE
download() {
  if command -v curl >/dev/null; then
    curl --fail --location --silent --show-error --connect-timeout 20 --retry 2 --output "$2" "$1"
  elif command -v wget >/dev/null; then
    wget --quiet --timeout=20 --tries=3 --output-document="$2" "$1"
  else
    fail "neither curl nor wget is there (apt-get install curl)"
  fi
}

by_hand() {
  local name sum
  {
    printf 'fetch-data: %s could not be fetched. By hand, on a machine with a network, fetch\n' "$1"
    while read -r name sum; do printf '  %s/%s (MD5 %s)\n' "${homes[-1]}" "$name" "$sum"; done <<<"$files"
    printf 'put what is missing into %s, and run this again: it checks and unpacks them\n' "$to"
  } >&2
  exit 1
}

# fetch NAME MD5: leaves the file in $to, checked.
fetch() {
  local file=$to/$1 home
  if [ ! -e "$file" ]; then
    for home in "${homes[@]}"; do
      say "$home/$1"
      if download "$home/$1" "$file.part"; then
        [ "$(sum_of "$file.part")" = "$2" ] && mv "$file.part" "$file" && break
        say "what came has the MD5 $(sum_of "$file.part"), the published one is $2: it is thrown away"
      fi
      rm -f "$file.part"
    done
    [ -e "$file" ] || by_hand "$1"
  fi
  [ "$(sum_of "$file")" = "$2" ] ||
    fail "$file has the MD5 $(sum_of "$file"), the published one is $2: remove it and run this again"
  say "$1: MD5 as published, SHA-256 $(sha256sum "$file" | cut -d ' ' -f 1)"
}

name='' to='' from=''
while [ $# -gt 0 ]; do
  case $1 in
    --help) usage; exit 0 ;;
    --to|--from)
      [ $# -gt 1 ] || fail "$1 needs a value; see --help"
      if [ "$1" = --to ]; then to=$2; else from=$2; fi
      shift ;;
    -*) fail "there is no option '$1'; see --help" ;;
    *) [ -z "$name" ] || fail "one name at a time, not '$name' and '$1'"; name=$1 ;;
  esac
  shift
done
[ -n "$name" ] || { usage >&2; exit 2; }
choose "$name"
[ -z "$from" ] || homes=("${from%/}")
to=${to:-data/$name}
mkdir -p "$to"
while read -r file sum; do
  fetch "$file" "$sum"
  case $file in
    *.tar.gz) tar -xzf "$to/$file" -C "$to" ;;
  esac
done <<<"$files"
say "done: --data $to"
