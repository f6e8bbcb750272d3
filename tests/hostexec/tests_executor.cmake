# SPDX-License-Identifier: Apache-2.0
# The executor's own tests.
atomo_hostexec_test(semantics test_semantics.cu)
