# SPDX-License-Identifier: Apache-2.0
# The suites over all codecs and over whole models, on the device that the host executor is. Their tensors, messages and
# workspaces are device memory. Races are looked for where every kernel runs once over several blocks, not for every
# size, spec and step.
set(tests ${PROJECT_SOURCE_DIR}/tests)
atomo_hostexec_test(parity ${tests}/test_device_parity.cpp
  RANDOM_FILTER "*LargeTensors*"
  TSAN_FILTER "*Damaged*bits_1_atoms_rows:*Damaged*keep_0p1:*Damaged*qsgd_bits_4:*Damaged*terngrad:*Damaged*mean:*Damaged*topk_keep_3")
atomo_hostexec_test(codecs ${tests}/test_codecs.cpp RELEASE_FILTER "*AveragedCodec*" RANDOM_FILTER "*SizesAreBounded*"
  TSAN_FILTER "*BytesDependOnNothing*:*DecodeAddIsTwoRoundings*")
atomo_hostexec_test(mutations ${tests}/test_mutations.cpp RANDOM_FILTER "*Random*" TSAN_FILTER "*EveryTruncation*")
set(each_policy_once "*NonFiniteLayersAreLeftOut*:*AddsMessagesInRankOrder/3")
atomo_hostexec_test(model ${tests}/test_device_model.cpp RANDOM_FILTER ${each_policy_once}
  TSAN_FILTER ${each_policy_once})
atomo_hostexec_test(sums ${tests}/test_device_sums.cpp RANDOM_FILTER "*ValuesAreTheCpus*" TSAN_FILTER "*Damaged*")
atomo_hostexec_test(launches ${here}/test_launches.cpp RANDOM_FILTER "*CodecsCall*" TSAN_FILTER "*CodecsCall*")
