# SPDX-License-Identifier: Apache-2.0
atomo_test(test_spec test_spec.cpp)
atomo_test(test_container test_container.cpp)
atomo_test(test_codecs test_codecs.cpp)
atomo_test(test_fp_modes test_fp_modes.cpp)
atomo_test(test_allocations test_allocations.cpp)
atomo_test(test_executor test_executor.cpp)
atomo_test(test_compressor test_compressor.cpp
  VALUES_FILTER "*.ChosenFormsBeatOneForAll:*.OnePriceBeats*:*.BudgetIsMetOnAverage:*.ControllerHolds*")
atomo_test(test_mutations test_mutations.cpp)
atomo_test(test_cap test_cap.cpp VALUES_FILTER "*.NoMessageExceedsIt")
atomo_test(test_content_bound test_content_bound.cpp VALUES)
atomo_test(test_cap_models test_cap_models.cpp
  VALUES_FILTER "*.RoomForAReserve*:*.LeavingLayersOutIsUnbiased")
atomo_test(test_xxh3 test_xxh3.cpp)
target_link_libraries(test_xxh3 PRIVATE atomo::xxhash)

# The library once more, so that every basic block it enters is counted, without vectors: an entry at a time.
get_target_property(sources atomo SOURCES)
list(FILTER sources INCLUDE REGEX "\\.cpp$")
list(TRANSFORM sources PREPEND ${PROJECT_SOURCE_DIR}/src/)
add_library(atomo_counted OBJECT ${sources})
target_include_directories(atomo_counted PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_compile_features(atomo_counted PRIVATE cxx_std_20)
target_compile_options(atomo_counted PRIVATE -O1 -ffp-contract=off -fno-sanitize=all -fsanitize-coverage=trace-pc)
target_compile_definitions(atomo_counted PRIVATE HWY_COMPILE_ONLY_SCALAR)
target_link_libraries(atomo_counted PRIVATE atomo::xxhash atomo::blosc atomo::lapack hwy::hwy Threads::Threads)
atomo_test(test_decode_work test_decode_work.cpp)
target_link_libraries(test_decode_work PRIVATE atomo_counted)
