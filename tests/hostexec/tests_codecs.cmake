# SPDX-License-Identifier: Apache-2.0
# The suites over all codecs and over whole models, on the device that the host executor is. Their tensors, messages and
# workspaces are device memory. Races are looked for where every kernel runs once over several blocks, not for every
# size, spec and step.
set(tests ${PROJECT_SOURCE_DIR}/tests)
atomo_hostexec_cases(${tests}/device/test_device_parity.cpp
  RANDOM "*/Parity.LargeTensors*" "TinyTensors.*" "TopKTiles.*" "QsgdWidths.*"
  RACES "*/Parity.Damaged*bits_1_atoms_rows" "*/Parity.Damaged*keep_0p1" "*/Parity.Damaged*qsgd_bits_4"
    "*/Parity.Damaged*terngrad" "*/Parity.Damaged*mean" "*/Parity.Damaged*topk_keep_3")
atomo_hostexec_cases(${tests}/contract/test_codecs.cpp
  RELEASE "*/AveragedCodec.*"
  RANDOM "*/EveryCodec.SizesAreBounded*"
  RACES "*/EveryCodec.BytesDependOnNothing*" "*/EveryCodec.DecodeAddIsTwoRoundings*")
atomo_hostexec_cases(${tests}/hostile/test_hostile_bytes.cpp RANDOM "*/Mutations.Random*" RACES "*/Mutations.EveryTruncation*")
atomo_hostexec_cases(${tests}/contract/test_wire_bytes.cpp)
set(each_policy_once "*/DeviceModel.NonFiniteLayersAreLeftOut*" "*/DeviceModel.AddsMessagesInRankOrder/3")
# Of the policies 2 and 3, which take longest, 0, 1 and 4 run the kernels too.
set(left_out "*/DeviceModel.NonFiniteLayersAreLeftOut/")
atomo_hostexec_cases(${tests}/device/test_device_model.cpp RELEASE "*/DeviceModel.GraphsReplay*/2" RANDOM ${each_policy_once} "DeviceModelOfGaps.*"
  RACES "${left_out}0" "${left_out}1" "${left_out}4" "*/DeviceModel.AddsMessagesInRankOrder/3" "DeviceModelOfGaps.*"
  MORE_RACES "${left_out}2" "${left_out}3")
atomo_hostexec_cases(${tests}/device/test_device_tiles.cpp RANDOM "*/DeviceTilesOfModels.*/3")
atomo_hostexec_cases(${tests}/device/test_device_sums.cpp RANDOM "DeviceSums.ValuesAreTheCpus*" RACES "DeviceSums.Damaged*")
atomo_hostexec_cases(${tests}/device/test_device_add_all.cpp
  RANDOM "*/DeviceAddAll.SumsAreTheCpus*" "DeviceAddAllOfAModel.*" "DeviceVotes.AreTheCpus"
  RACES "*/DeviceAddAll.NamesTheMessage*" "DeviceVotes.TellWhich*")
atomo_hostexec_cases(${tests}/device/test_device_two_streams.cpp)
atomo_hostexec_cases(${here}/test_half_rounding.cu)
# How many launches there are follows from src/cuda/ alone.
atomo_hostexec_cases(${here}/test_launches.cpp RELEASE "Launches.AreAsMany*" "Launches.OfFormsDoNotGrow*" RANDOM "Launches.CodecsCall*" RACES "Launches.CodecsCall*")
atomo_hostexec_cases(${here}/test_launch_table.cpp RELEASE "LaunchTable.*")
