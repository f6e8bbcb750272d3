#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds and runs a program with nothing but what pkg-config says of the installed library.
# usage: pkg_config.sh COMPILER LIBDIR SOURCE PROGRAM
set -eu
export PKG_CONFIG_PATH="$2/pkgconfig"
# shellcheck disable=SC2046  # the flags are meant to be split
"$1" -std=c++20 "$3" $(pkg-config --cflags --libs atomo) -o "$4"
LD_LIBRARY_PATH="$2" "$4"
