# SPDX-License-Identifier: Apache-2.0
atomo_test(test_spec test_spec.cpp)
atomo_test(test_container test_container.cpp)
atomo_test(test_codecs test_codecs.cpp)
atomo_test(test_allocations test_allocations.cpp)
atomo_test(test_compressor test_compressor.cpp)
atomo_test(test_mutations test_mutations.cpp)
atomo_test(test_cap test_cap.cpp)
atomo_test(test_xxh3 test_xxh3.cpp)
