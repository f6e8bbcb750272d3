#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests and measures the CUDA backend on a machine with an NVIDIA GPU, which needs no network: what it lacks comes in a
# kit that another machine packed. tests/gpu/ holds the kit's packing and the report.
set -uo pipefail

usage() {
  cat <<'TEXT'
usage: bash tests/gpu.sh [PART...] [--deadline SECONDS] [--out FOLDER] [--commit ID] [--keep] [--rehearse] [--help]
       bash tests/gpu.sh --pack [--architecture 90]

With --pack, on a Debian or Ubuntu machine with a network and nvcc: downloads the libraries that atomo, its tests and its
benchmarks need and builds the programs, all into .gpu-kit/ (no root; nothing is installed). Copy the repository with
that folder to the GPU machine.

Without, on the GPU machine: runs the parts named, in this order, all but `build` and `sanitizer` where none is:

  build        builds the programs there (nvcc, g++, CMake 3.25), which takes minutes; the other parts do so by
               themselves where there is no kit, and refuse a kit of other sources
  smoke        the machine's own speeds, graphs under lazy loading, parity of five codecs, three of them under memcheck;
               when a step of it fails, no other part is begun
  correctness  every test on the GPU, then large tensors on two streams at once
  times        every codec on 25 M entries, ResNet-50 and GPT-2 small: by stream, by graph, by kernel
  profile      Nsight Compute's counters of the kernels of each codec
  peers        CUB, cuBLAS, cuSOLVER and PyTorch on comparable work; races and uninitialised memory on two codecs
  python       builds the Python package for the python3 there; its calls against the CPU's, DDP, FSDP and JAX; steps of
               ResNet-50 with hooks and without
  sanitizer    all tests but the large ones under compute-sanitizer's four tools: hours

After every step FOLDER holds a report, gpu.json and gpu.txt, with what was predicted beside what was measured, and all logs
in gpu-logs.tar.gz. What no time was left for is in it as not run.

  --deadline SECONDS   of the whole call, 540 a part by default; a step gets what is left at most
  --out FOLDER         $OUT by default where that names a folder, else build/gpu-report
  --commit ID          what to write down as the commit where the copy has no git
  --keep               go on with the report of the last call
  --rehearse           without a GPU: the same steps on the host executor (target kernel_tests of build/release), on small
                       tensors and a share of the cases; what needs a GPU is named
  --architecture N     compute capability without its point that --pack builds for, 90 by default
  --help               print this text

Exit status 0 when every step passed, 1 when one failed or did not run, 2 when there is no GPU.

example: bash tests/gpu.sh smoke correctness --deadline 540
TEXT
}

say() { printf '== %s\n' "$*"; }
fail() { printf 'gpu.sh: %s\n' "$*" >&2; exit 1; }
refuse() { usage >&2; printf 'gpu.sh: %s\n' "$*" >&2; exit 1; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
readonly build=build/gpu results=build/gpu-results
# shellcheck source=tests/gpu/kit.sh
. tests/gpu/kit.sh

readonly kParts=(build smoke correctness times profile peers python sanitizer)
parts=()
deadline=
out=
commit=
keep=0
rehearse=0
share=$([ "${ATOMO_TESTS_ALL:-1}" = 0 ] && echo 150 || echo 30)  # one case in so many is rehearsed
packs=0
architecture=90
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) usage; exit 0 ;;
    --pack) packs=1 ;;
    --keep) keep=1 ;;
    --rehearse) rehearse=1 ;;
    --deadline | --out | --commit | --architecture)
      [ $# -ge 2 ] || refuse "$1 needs a value"
      case "$1" in
        --deadline) deadline=$2; [[ $2 =~ ^[1-9][0-9]*$ ]] || refuse "--deadline is '$2'; seconds are wanted, such as 540" ;;
        --out) out=$2 ;;
        --commit) commit=$2 ;;
        --architecture) architecture=$2; [[ $2 =~ ^[0-9]{2,3}$ ]] || refuse "--architecture is '$2'; 90 is one" ;;
      esac
      shift ;;
    -*) refuse "unknown option '$1'" ;;
    *)
      [[ " ${kParts[*]} " == *" $1 "* ]] || refuse "unknown part '$1'; ${kParts[*]} are accepted"
      parts+=("$1") ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || parts=(smoke correctness times profile peers python)
deadline=${deadline:-$((540 * ${#parts[@]}))}
if [ -z "$out" ]; then
  out=build/gpu-report
  [ -d "${OUT:-}" ] && out=$OUT
fi
[ -n "$commit" ] || commit=$(git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)

wants() { [[ " ${parts[*]} " == *" $1 "* ]]; }

find_tool() {
  command -v "$1" && return
  local folder
  for folder in "${CUDA_HOME:-/usr/local/cuda}" /usr/local/cuda; do
    [ -x "$folder/bin/$1" ] && echo "$folder/bin/$1" && return
    [ -x "$folder/compute-sanitizer/$1" ] && echo "$folder/compute-sanitizer/$1" && return
  done
  return 1
}

if [ $packs -eq 1 ]; then
  pack "$architecture"
  exit 0
fi

# --- steps

report() {
  python3 tests/gpu/report.py --results $results --commit "$commit" --out "$out" "$@" || return
  tar -C $results -czf "$out/gpu-logs.tar.gz" .
}

# note NAME OUTCOME SECONDS: the outcome is an exit status, or why the step did not run.
note() {
  printf '%s\t%s\t%d\n' "$1" "$2" "$3" >>$results/steps.tsv
  report --quiet
}

failed=0
# step NAME SECONDS command...: runs it with its output in a log, for that long at most and not beyond the deadline.
step() {
  local name=$1 limit=$2 started=$SECONDS status=0 left=$((deadline - SECONDS - 5))
  shift 2
  if [ $left -lt 3 ]; then
    say "$name: not run, the deadline is near"
    note "$name" "the deadline was near" 0
    failed=1
    return 1
  fi
  say "$name"
  timeout --kill-after 5 $((limit < left ? limit : left)) "$@" >"$results/$name.log" 2>&1 || status=$?
  note "$name" $status $((SECONDS - started))
  if [ $status -ne 0 ]; then
    failed=1
    tail -n 15 "$results/$name.log"
    say "$name failed (exit status $status$([ $status -eq 124 ] && echo ', it ran out of time')); all of it is in its log"
  fi
  return $status
}

# on_gpu NAME SECONDS command...: a step that a rehearsal only names.
on_gpu() {
  if [ $rehearse -eq 0 ]; then
    step "$@"
  else
    say "$1 needs a GPU"
    note "$1" "it needs a GPU" 0
  fi
}

# cases NAME SECONDS FILTER [PROCESSES]: tests, with their outcome for the report.
cases() {
  local name=$1 limit=$2 filter=$3 processes=${4:-1}
  local command=("$programs/gpu_cases" --gtest_brief=1 "--gtest_filter=$filter")
  if [ $rehearse -eq 1 ]; then
    step "tests.$name" "$limit" env GTEST_TOTAL_SHARDS=$share GTEST_SHARD_INDEX=0 "${command[@]}" \
      "--gtest_output=json:$results/tests.$name.json"
  else
    step "tests.$name" "$limit" python3 tests/gpu/shards.py "$processes" --json "$results/tests.$name.json" -- "${command[@]}"
  fi
}

# sanitize TOOL NAME SECONDS FILTER [PROCESSES]
sanitize() {
  local tool=$1 name=$2 limit=$3 filter=$4 processes=${5:-1} sanitizer options
  options=(--tool "$tool" --error-exitcode 9 --print-limit 20)
  [ "$tool" = memcheck ] && options+=(--leak-check full)
  sanitizer=$(find_tool compute-sanitizer || echo compute-sanitizer)
  on_gpu "sanitizer.$tool.$name" "$limit" python3 tests/gpu/shards.py "$processes" -- "$sanitizer" "${options[@]}" \
    "$programs/gpu_cases" --gtest_brief=1 "--gtest_filter=$filter"
}

# bench NAME SECONDS FILTER: figures, which the report reads from bench.NAME.json.
bench() {
  "${4:-step}" "bench.$1" "$2" "$programs/bench_gpu" --benchmark_filter="$3" --benchmark_out_format=json \
    --benchmark_out="$results/bench.$1.json"
}

# --- parts

# find_programs: sets `programs` to a folder with gpu_cases and bench_gpu.
find_programs() {
  if [ $rehearse -eq 1 ]; then
    programs=$results/programs
    mkdir -p $programs
    ln -sf "$root/build/release/tests/hostexec/hostexec_cases" $programs/gpu_cases
    ln -sf "$root/build/release/tests/hostexec/hostexec_bench" $programs/bench_gpu
    step build.rehearsal 30 "$programs/gpu_cases" --gtest_list_tests
    return
  fi
  programs=${ATOMO_GPU_PROGRAMS:-}  # a folder that has them already
  [ -n "$programs" ] && return
  if [ -f $kKit ]; then
    unpack_kit || return 1
    if ! wants build; then
      packed_programs || { say "pack the kit again, or name the part build: it builds them here, which takes minutes"; return 1; }
      programs=$build-kit/bin
      return
    fi
  fi
  programs=$build/bin
  if wants build || ! [ -x $programs/gpu_cases ]; then
    step build.programs 600 bash tests/gpu/build.sh "$(find_tool nvcc || echo nvcc)" "$architecture" "${kit_options[@]}"
  fi
}

smoke() {
  local few='*/Parity.MessagesAndValuesAreTheCpus' three
  three="$few/sign:$few/atomo_bits_0p25_atoms_blocks:$few/atomo_bits_1_atoms_coordinate"
  on_gpu clocks 20 nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE
  bench machine 60 '^machine/' on_gpu
  CUDA_MODULE_LOADING=LAZY cases lazy_graphs 90 '*.Graphs*'
  cases parity_of_five 60 "$three:$few/qsgd_bits_4:$few/topk_keep_0p05"
  sanitize memcheck three 240 "$three" 3
}

# Most of a test's time is the CPU's, so processes share the GPU.
correctness() {
  local processes=$((cores < 16 ? cores : 16))
  cases parity 90 '*/Parity.*' $processes
  cases others 240 '-*/Parity.*:*/TwoStreams*:*/Large.*' $processes
  ATOMO_TEST_ENTRIES=$([ $rehearse -eq 1 ] && echo 70001 || echo 67108864) cases two_streams 240 '*/TwoStreams*' 6
  on_gpu_cases large 120 '*/Large.*' 2
}

on_gpu_cases() {
  if [ $rehearse -eq 0 ]; then cases "$@"; else on_gpu "tests.$1" "$2"; fi
}

models() { if [ $rehearse -eq 1 ]; then echo tiny; else echo 25M resnet50 gpt2; fi; }

# The exact SVD comes last, of one tensor: it takes longer than all others together.
times() {
  local model rest='([^s]|s[^v])*s?'  # specs without "sv"
  for model in $(models); do bench "$model" 150 "^$model/$rest/(encode|decode|decode_add|decode_add_8)/iterations"; done
  for model in $(models); do bench "$model-kernels" 60 "^$model/$rest/(encode|decode|decode_add_8)/kernels" on_gpu; done
  bench svd 60 '^25M/.*svd.*/(encode|decode)/iterations' on_gpu
}

readonly kMetrics=(gpu__time_duration.sum dram__bytes_read.sum dram__bytes_write.sum lts__t_sector_hit_rate.pct
  smsp__inst_executed.sum smsp__inst_executed_pipe_fp64.sum smsp__issue_active.avg.pct_of_peak_sustained_active
  sm__warps_active.avg.pct_of_peak_sustained_active l1tex__data_bank_conflicts_pipe_lsu.sum
  smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio
  smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio
  smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio
  smsp__average_warps_issue_stalled_membar_per_issue_active.ratio
  smsp__average_warps_issue_stalled_wait_per_issue_active.ratio
  smsp__average_warps_issue_stalled_branch_resolve_per_issue_active.ratio
  launch__registers_per_thread launch__occupancy_limit_registers launch__occupancy_limit_shared_mem)

# profile_codec NAME SPEC: the third launch of each kernel that encoding and decoding 25 M entries make.
profile_codec() {
  local metrics ncu
  metrics=$(IFS=,; echo "${kMetrics[*]}")
  ncu=$(find_tool ncu || echo ncu)
  on_gpu "profile.$1" 60 "$ncu" --clock-control none --csv --page raw --metrics "$metrics" --kernel-id '::regex:.*:3' \
    --log-file "$results/profile.$1.csv" "$programs/bench_gpu" --benchmark_filter="^25M/$2/(encode|decode)/iterations"
}

profile() {
  profile_codec blocks atomo:atoms=blocks,bits=1
  profile_codec default atomo:bits=0.5
  profile_codec coordinate atomo:atoms=coordinate,bits=1
  profile_codec qsgd qsgd:bits=4
  profile_codec topk topk:keep=0.01
  profile_codec identity identity:dtype=f16
  profile_codec terngrad terngrad
  profile_codec randomk randomk:keep=0.01
  profile_codec sign sign
}

peers() {
  local two='*/Parity.DamagedMessages/atomo_bits_0p25_atoms_blocks:*/Parity.DamagedMessages/atomo_bits_1_atoms_coordinate'
  bench peers 120 '^peers/' on_gpu
  if [ $rehearse -eq 1 ] && [ -x build/venv/bin/python ]; then
    step peers.torch 60 build/venv/bin/python tests/gpu/peers.py --device cpu --out "$results/peers.torch.json"
  else
    on_gpu peers.torch 120 python3 tests/gpu/peers.py --out "$results/peers.torch.json"
  fi
  sanitize racecheck two 120 "$two" 2
  sanitize initcheck two 120 "$two" 2
}

# python_step NAME SECONDS SCRIPT option...: a script of tests/gpu/python with the package that was built.
python_step() {
  local name=$1 limit=$2 script=tests/gpu/python/$3
  shift 3
  if [ $rehearse -eq 1 ] && build/venv/bin/python -c 'import atomo' 2>/dev/null; then
    step "$name" "$limit" build/venv/bin/python "$script" --rehearse "$@"
  else
    on_gpu "$name" "$limit" env PYTHONPATH="$build-python" python3 "$script" "$@"
  fi
}

python() {
  local library=$programs/../atomo/libatomo.a  # the kit's, else that of the build there
  [ -f "$library" ] || library=$build/src/libatomo.a
  on_gpu build.python 90 bash tests/gpu/python/build.sh python3 "$library" "$build-kit" "$build-python" || return
  python_step tests.python 90 cases.py --json "$results/tests.python.json"
  python_step tests.python_jax 75 jax_cases.py --json "$results/tests.python_jax.json" --out "$results/bench.python_jax.json"
  python_step bench.python 90 times.py --out "$results/bench.python.json"
}

sanitizer() {
  local tool
  for tool in memcheck racecheck synccheck initcheck; do sanitize $tool all 36000 '*-*Long*:*Large*:*TwoStreams*:*Oracles*'; done
}

# --- the run

trap 'exit 130' INT TERM
[ $keep -eq 1 ] || rm -rf $results
mkdir -p $results "$out" || fail "'$out' cannot be made"
touch $results/steps.tsv
cores=$(nproc)  # which believes OMP_NUM_THREADS
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
if [ $rehearse -eq 0 ]; then
  # The first GPU's compute capability without its point, e.g. 90.
  found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -oE -m 1 '^[0-9]+\.[0-9]+$' | tr -d .)
  if [ -z "$found" ]; then
    echo "gpu.sh: there is no NVIDIA GPU on this machine; --rehearse runs the steps on the host executor" >&2
    exit 2
  fi
  architecture=$found
fi
if find_programs; then
  for part in "${kParts[@]}"; do
    wants "$part" && [ "$part" != build ] || continue
    say "part $part"
    "$part"
    if [ "$part" = smoke ] && [ $failed -ne 0 ]; then
      say "smoke failed: nothing else is run"
      break
    fi
  done
else
  failed=1
fi
report || failed=1
exit $failed
