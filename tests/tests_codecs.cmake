# SPDX-License-Identifier: Apache-2.0
atomo_test(test_methods test_methods.cpp)
atomo_test(test_level_math test_level_math.cpp)
atomo_test(test_qsgd test_qsgd.cpp)
atomo_test(test_sign test_sign.cpp)
atomo_test(test_topk test_topk.cpp)
atomo_test(test_random_k test_random_k.cpp)
atomo_test(test_blosc test_blosc.cpp)
atomo_test(test_codec_bias test_codec_bias.cpp)
