// SPDX-License-Identifier: Apache-2.0
// refused: -Werror=sign-compare
// A warning of the host's compiler is an error too.
bool below(int x, unsigned y);
bool below(int x, unsigned y) { return x < y; }
