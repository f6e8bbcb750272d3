# SPDX-License-Identifier: Apache-2.0
# Singular pairs; cublas.cpp and cusolver.cpp stand in for the libraries.
atomo_hostexec_cases(${PROJECT_SOURCE_DIR}/tests/device/test_device_svd.cpp ${here}/test_svd_calls.cpp
  RELEASE "*/DeviceSvd.EncodesAsWellAsTheCpu*" "*/DeviceSvd.EncodesWithoutBias*" "*/DeviceSvdModel.*/1" "*/DeviceSvdModel.Adds*/2"
  # Stay: pairs by bits, by a price and by a count; and of the models' sums those of the two other policies.
  MORE_RELEASE "*/DeviceSvd.EncodesWithoutBias*bits_6*" "*/DeviceSvd.EncodesWithoutBias*bits_0p4*"
    "*/DeviceSvd.EncodesWithoutBias*keep_0p5*" "*/DeviceSvd.EncodesAsWellAsTheCpu*bits_6*" "*/DeviceSvdModel.Adds*/1"
    "*/DeviceSvdModel.NonFinite*/1"
  RANDOM "*/DeviceSvd.DecodesToTheCpus*" "*/DeviceSvd.EncodesWhatDecodesAlike*" "*/DeviceSvdModel.MessagesAre*/0"
    "*/DeviceSvdModel.MessagesAre*/2"
  RACES "*/DeviceSvd.EncodesMatricesOfLowRank*bits_2*" "*/DeviceSvd.EncodesMatricesOfLowRank*keep_3*" "SvdCalls.Layers*"
    "SvdCalls.Encoding*" "SvdCalls.Decoding*")
