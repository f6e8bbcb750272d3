# SPDX-License-Identifier: Apache-2.0
# A row a codec: its file in src/codec/methods/, its file in src/cuda/ and its test in tests/, "-" where there is none.
set(ATOMO_CODECS
  "chunk_topk_codec.cpp chunk_topk.cu test_chunk_topk.cpp"
  "fp8_codec.cpp fp8.cu test_fp8.cpp"
  "identity_codec.cpp identity.cu -"
  "minmax_codec.cpp minmax.cu test_minmax.cpp"
  "natural_codec.cpp natural.cu test_natural.cpp"
  "own_codec.cpp - test_own_codec.cpp"
  "qsgd_codec.cpp qsgd.cu test_qsgd.cpp"
  "random_k_codec.cpp random_k.cu test_random_k.cpp"
  "sign_codec.cpp sign.cu test_sign.cpp"
  "ternary_codec.cpp ternary.cu -"
  "topk_codec.cpp topk.cu test_topk.cpp")

# atomo_codec_files(OUT column folder): the files of a column, behind their folder.
function(atomo_codec_files out column folder)
  set(files)
  foreach(row IN LISTS ATOMO_CODECS)
    separate_arguments(row)
    list(GET row ${column} file)
    if(NOT file STREQUAL "-")
      list(APPEND files ${folder}${file})
    endif()
  endforeach()
  set(${out} ${files} PARENT_SCOPE)
endfunction()
