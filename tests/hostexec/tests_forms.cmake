# SPDX-License-Identifier: Apache-2.0
# Sketches, and layers that choose their form, on the device that the host executor is.
set(tests ${PROJECT_SOURCE_DIR}/tests)
atomo_hostexec_cases(${tests}/device/test_device_forms.cpp ${tests}/device/test_device_form_caps.cpp ${tests}/device/test_device_form_models.cpp
  ${tests}/device/test_device_ranks.cpp
  RELEASE "*/LearntRanks.AreTheCpus/*" "*/LearntRanks.*/0" "*/LearntRanks.*/2" "*/LearntRanks.*/3" "*/DeviceForms.EstimatesAreUnbiased*" "*/DeviceForms.EncodesWhatDecodesAlike*" "*/SketchModels.*/1"
    "*/SketchModels.*/2"
  RANDOM "*/DeviceForms.DecodesToTheCpus*bits_1*" "*/FormModels.MessagesAreTheCpus*" "*/SketchModels.TheCpu*"
  RACES "*/DeviceForms.DecodesExtreme*bits_1*" "*/FormModels.WithLayers*/0" "*/FormModels.WithLayers*/2"
    "*/SketchModels.TheCpu*/1" "*/SketchModels.NonFinite*/3")
