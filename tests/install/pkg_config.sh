#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds and runs a program with nothing but what pkg-config says of the installed library: the one for C when the
# source is in C.
# usage: pkg_config.sh COMPILER LIBDIR SOURCE PROGRAM
set -eu
export PKG_CONFIG_PATH="$2/pkgconfig"
case "$3" in
  *.c) package=atomo_c flags="-std=c99 -pedantic -Wall -Wextra -Werror" ;;
  *) package=atomo flags=-std=c++20 ;;
esac
# shellcheck disable=SC2046,SC2086  # the flags are meant to be split
"$1" $flags "$3" $(pkg-config --cflags --libs "$package") -o "$4"
LD_LIBRARY_PATH="$2" "$4"
