# SPDX-License-Identifier: Apache-2.0
# The executor's own tests; the bugs that it must see are in tests_planted.cmake.
atomo_hostexec_test(semantics test_semantics.cu)
atomo_hostexec_test(runtime test_runtime.cu)
atomo_hostexec_test(cub test_cub.cu)
