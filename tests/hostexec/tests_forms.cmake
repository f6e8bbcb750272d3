# SPDX-License-Identifier: Apache-2.0
# Sketches, and layers that choose their form, on the device that the host executor is.
atomo_hostexec_test(forms ${PROJECT_SOURCE_DIR}/tests/test_device_forms.cpp
  ${PROJECT_SOURCE_DIR}/tests/test_device_form_caps.cpp ${PROJECT_SOURCE_DIR}/tests/test_device_form_models.cpp
  RELEASE_FILTER "*EstimatesAreUnbiased*:*EncodesWhatDecodesAlike*:*SketchModels*/1:*SketchModels*/2" RANDOM_FILTER "*DecodesToTheCpus*bits_1*:*FormModels.MessagesAreTheCpus*:*SketchModels.TheCpu*"
  TSAN_FILTER "*DecodesExtreme*bits_1*:*FormModels.WithLayers*/0:*FormModels.WithLayers*/2:*SketchModels.TheCpu*/1:*SketchModels.NonFinite*/3")
