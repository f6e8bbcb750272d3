# SPDX-License-Identifier: Apache-2.0
atomo_test(test_spec test_spec.cpp)
atomo_test(test_container test_container.cpp)
atomo_test(test_codecs test_codecs.cpp)
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
