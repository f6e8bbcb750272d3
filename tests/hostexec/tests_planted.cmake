# SPDX-License-Identifier: Apache-2.0
# Bugs of planted_bugs.cu and who must see them. planted(NAME MODES MESSAGE [ORDER]): run with the bug NAME, the program
# of each mode (plain, asan, tsan) must print what matches MESSAGE, a regular expression.
set(programs)
if(NOT ATOMO_SANITIZE)
  set(programs plain tsan)
elseif(sanitizer STREQUAL "address")
  set(programs asan)
endif()
atomo_compile_as_cxx(planted_bugs.cu)
foreach(mode IN LISTS programs)
  if(mode STREQUAL "tsan")
    atomo_hostexec_program(hostexec_planted_tsan atomo_hostexec_tsan thread planted_bugs.cu)
  else()
    atomo_hostexec_program(hostexec_planted_${mode} atomo_hostexec ${sanitizer} planted_bugs.cu)
  endif()
  target_link_libraries(hostexec_planted_${mode} PRIVATE ${atomo_inside})
  atomo_built_for(kernels hostexec_planted_${mode})
  foreach(order ascending descending random)
    set(test hostexec.planted.none.${mode}.${order})
    add_test(NAME ${test} COMMAND hostexec_planted_${mode} none)
    set_tests_properties(${test} PROPERTIES TIMEOUT 600 PASS_REGULAR_EXPRESSION "nothing was found"
      FAIL_REGULAR_EXPRESSION "hostexec: ;wrong: ;Sanitizer;runtime error"
      ENVIRONMENT "ATOMO_HOSTEXEC_ORDER=${order};TSAN_OPTIONS=halt_on_error=1")
    atomo_tier(kernels ${test})
  endforeach()
endforeach()

function(planted name modes message)
  set(order ascending)
  if(ARGN)
    set(order ${ARGN})
  endif()
  foreach(mode IN LISTS modes)
    if(mode IN_LIST programs)
      set(test hostexec.planted.${name}.${mode})
      add_test(NAME ${test} COMMAND hostexec_planted_${mode} ${name})
      set_tests_properties(${test} PROPERTIES TIMEOUT 600 PASS_REGULAR_EXPRESSION "${message}"
        ENVIRONMENT "ATOMO_HOSTEXEC_ORDER=${order};TSAN_OPTIONS=halt_on_error=1")
      atomo_tier(kernels ${test})
    endif()
  endforeach()
endfunction()

set(race "ThreadSanitizer: data race")
set(past_heap "AddressSanitizer: heap-buffer-overflow")

# Barriers.
planted(missing_barrier plain "wrong: values")
planted(missing_barrier tsan ${race})
planted(missing_barrier_before_reading plain "wrong: values")
planted(missing_barrier_before_reading tsan ${race})
planted(missing_barrier_before_writing plain "wrong: values")
planted(missing_barrier_before_writing tsan ${race})
planted(missing_syncwarp plain "wrong: values")
planted(missing_syncwarp tsan ${race})
planted(missing_syncwarp_of_one tsan ${race})  # of the last warp
planted(shuffle_for_a_barrier tsan ${race})
planted(scan_memory_used_again plain "wrong: scans")
planted(scan_memory_used_again tsan ${race})
planted(divergent_barrier "plain;asan;tsan" "different __syncthreads")
planted(barriers_in_branches "plain;asan;tsan" "different __syncthreads")
planted(missing_fence tsan ${race})

# Blocks that run at the same time.
planted(waits_for_a_later_turn "plain;asan" "waits for what no other thread that runs will do")
planted(turn_without_a_wait "plain;asan" "wrong: a turn's sum" random)
planted(turn_without_a_wait tsan ${race} random)

# Warps.
planted(wrong_mask "plain;asan" "its mask does not name")
planted(absent_lane "plain;asan" "a lane that does not take part")
planted(divergent_shuffle "plain;asan" "(different warp operations|deadlock)")
planted(warp_never_complete "plain;asan" "deadlock: threads wait for others that never come")
planted(endless_wait "plain;asan" "waits for what no other thread that runs will do")
planted(endless_silent_wait "plain;asan" "waits for what no other thread that runs will do")

# Matrices of a warp.
planted(more_than_tf32 "plain;asan" "a value that was not rounded to TF32")
planted(lanes_without_a_matrix "plain;asan" "of which lanes have returned")
planted(different_matrices "plain;asan" "name different matrices")
planted(misaligned_matrix "plain;asan" "no multiple of 32 bytes")
planted(matrix_stride "plain;asan" "no multiple of 16 bytes")
planted(matrix_read_while_written plain "wrong: a product of matrices")
planted(matrix_read_while_written tsan ${race})
planted(matrix_written_while_read tsan ${race})

# Races on values.
planted(race_on_a_shared_word tsan ${race})
planted(race_between_blocks tsan ${race})

# Memory.
planted(read_past_the_end asan ${past_heap})
planted(write_past_the_end asan ${past_heap})
planted(shared_overrun asan ${past_heap})
planted(dynamic_shared_one_short asan ${past_heap})
planted(uninitialised_shared "plain;asan;tsan" "wrong: values")
planted(misaligned_vector asan "runtime error: .*misaligned address")
planted(host_pointer "plain;asan" "no device memory")
planted(host_reads_device asan "AddressSanitizer: use-after-poison")
planted(use_after_free "plain;asan" "no device memory")
planted(leak asan "LeakSanitizer: detected memory leaks")

# Arithmetic.
planted(index_overflow asan "runtime error: signed integer overflow")
planted(unsigned_index_overflow "plain;asan" "wrong: an index")
planted(float_to_int asan "runtime error: .*outside the range of representable values")
planted(shift_by_32 asan "runtime error: shift exponent 32 is too large")
planted(fused_multiply_add "plain;asan" "wrong: arithmetic")

# The host.
planted(wrong_direction "plain;asan" "wrong: the copy's direction")
planted(too_many_threads "plain;asan" "wrong: the launch's configuration")
planted(shared_size_not_asked_for "plain;asan" "wrong: a large dynamic shared memory")
planted(default_stream "plain;asan" "wrong: cudaLaunchKernelExC on the default stream")
planted(waits_where_it_must_not "plain;asan" "wrong: cudaStreamSynchronize")
planted(read_before_it_is_done "plain;asan" "wrong: what the kernel wrote")
planted(streams_not_ordered "plain;asan" "wrong: the second stream's sum")
planted(capture_waits "plain;asan" "wrong: the capture")
planted(capture_allocates "plain;asan" "wrong: the capture")
planted(capture_on_another_stream "plain;asan" "wrong: what the graph wrote")

# An order that does not exist.
planted(unknown_order "plain;asan" "ATOMO_HOSTEXEC_ORDER is 'upwards'; ascending, descending and random are accepted" upwards)
