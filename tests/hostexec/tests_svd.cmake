# SPDX-License-Identifier: Apache-2.0
# Singular pairs; cublas.cpp and cusolver.cpp stand in for the libraries.
atomo_hostexec_test(svd ${PROJECT_SOURCE_DIR}/tests/test_device_svd.cpp test_svd_calls.cpp
  RANDOM_FILTER "*DecodesToTheCpus*:*DecodesAlike*:*MessagesAre*/0:*MessagesAre*/2" TSAN_FILTER "*LowRank*bits_2*:*LowRank*keep_3*:SvdCalls.Layers*:SvdCalls.Encoding*:SvdCalls.Decoding*")
