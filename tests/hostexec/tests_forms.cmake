# SPDX-License-Identifier: Apache-2.0
# Sketches, and layers that choose their form, on the device that the host executor is.
set(tests ${PROJECT_SOURCE_DIR}/tests)
atomo_hostexec_cases(${tests}/device/test_device_forms.cpp ${tests}/device/test_device_form_caps.cpp ${tests}/device/test_device_form_models.cpp
  ${tests}/device/test_device_ranks.cpp
  RELEASE "*/LearntRanks.AreTheCpus/*" "*/LearntRanks.*/0" "*/LearntRanks.*/2" "*/LearntRanks.*/3" "*/DeviceForms.EstimatesAreUnbiased*" "*/DeviceForms.EncodesWhatDecodesAlike*" "*/SketchModels.*/1"
    "*/SketchModels.*/2" "LargeRanks.*"
  # Stay: for each test a spec that chooses forms, and sketches by a rank and, of what decodes alike or on average, by a price.
  # Of ranks, those of layers that choose and of a cap stay, and those of sketches alone layer by layer.
  MORE_RELEASE "*/DeviceForms.EstimatesAreUnbiased*bits_6_atoms_auto" "*/DeviceForms.EstimatesAreUnbiased*bits_0p2_atoms_auto*"
    "*/DeviceForms.EstimatesAreUnbiased*price_0p02_atoms_auto" "*/DeviceForms.EstimatesAreUnbiased*bits_2_atoms_sketch"
    "*/DeviceForms.EncodesWhatDecodesAlike*bits_6_atoms_auto" "*/DeviceForms.EncodesWhatDecodesAlike*bits_0p2_atoms_auto*"
    "*/DeviceForms.EncodesWhatDecodesAlike*price_0p01_atoms_sketch" "*/DeviceForms.EncodesWhatDecodesAlike*bits_2_atoms_sketch"
    "*/LearntRanks.AreTheCpus/0" "*/LearntRanks.AreTheCpus/1" "LargeRanks.*"
  RANDOM "*/DeviceForms.DecodesToTheCpus*bits_1*" "*/FormModels.MessagesAreTheCpus*" "*/SketchModels.TheCpu*"
  RACES "*/DeviceForms.DecodesExtreme*bits_1*" "*/FormModels.WithLayers*/0" "*/FormModels.WithLayers*/2"
    "*/SketchModels.TheCpu*/1" "*/SketchModels.NonFinite*/3")
