#!/usr/bin/env bash
# The GPU engine on this machine: check and time it; one table at the end.
#   lab/recipes/gpu.sh           everything (about 20 minutes on an H200)
#   lab/recipes/gpu.sh check     correctness only (about 6 minutes)
#   lab/recipes/gpu.sh bench     speed only, with transformers beside it (about 11 minutes)
#   lab/recipes/gpu.sh families  the general driver: correctness, then speed (at most 10 minutes)
#   lab/recipes/gpu.sh soak      the server under 16 clients, for 5 minutes with a dense model and 1 with recurrent states
# Needs an NVIDIA driver, PyTorch, cuda-bindings and NVRTC; neither nvcc nor a C++ compiler. RESULTS: where files go.
set -uo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
PYTHON=${PYTHON:-python3}
RESULTS=${RESULTS:-build/gpu}
mkdir -p "$RESULTS"
rm -f "$RESULTS/prompts.txt"
what=${1:-all}
status=0

if [ "$what" = families ]; then
  timeout 230 "$PYTHON" tests/kernels/cuda/gpu_families.py --seconds 190 2>&1 | tee "$RESULTS/families-check.txt" || status=1
  timeout 360 "$PYTHON" -m fulgur.bench.gpu_families --seconds 280 --json "$RESULTS/families.json" 2>&1 |
    tee "$RESULTS/families.txt" || status=1
  echo
  echo "== summary =="
  grep -E 'checks passed|^FAIL' "$RESULTS/families-check.txt" | sort -u
  grep -E 'gpu\.|FAIL' "$RESULTS/families.txt" | sort -u
  exit $status
fi
if [ "$what" = soak ]; then
  for model in "llama-3.2-1b 300" "qwen3_5 60"; do
    read -r name seconds <<<"$model"
    "$PYTHON" tests/kernels/cuda/gpu_soak.py --model "$name" --seconds "$seconds" 2>&1 | tee "$RESULTS/soak-$name.txt" || status=1
  done
  exit $status
fi
if [ "$what" != bench ]; then
  timeout 330 "$PYTHON" tests/kernels/cuda/gpu_check.py --seconds 280 2>&1 | tee "$RESULTS/check.txt" || status=1
  if command -v compute-sanitizer >/dev/null; then
    # API errors are not reported: cuda-bindings looks up every function of every driver version. racecheck is of no use:
    # it understands barriers, but takes mbarrier copies and acquire/release words for races.
    timeout 110 compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 \
      "$PYTHON" tests/kernels/cuda/gpu_check.py --quick --only "drivers agree qwen3_moe" --seconds 90 >"$RESULTS/memcheck.txt" 2>&1
    code=$?
    [ $code -eq 0 ] || status=1
    echo "compute-sanitizer memcheck: exit $code; $(grep -E 'ERROR SUMMARY' "$RESULTS/memcheck.txt" | tail -1)"
    grep -E '^========= (Invalid|Error|Warning|Program|Potential)' "$RESULTS/memcheck.txt" | sort | uniq -c | sort -rn | head -5
  fi
fi
if [ "$what" != check ]; then
  timeout 700 "$PYTHON" -m fulgur.bench.gpu_decode --phases --peer --contexts 4096,16384,32000 --seconds 600 --json "$RESULTS/gpu.json" 2>&1 |
    tee "$RESULTS/bench.txt" || status=1
  for model in "qwen3-coder-30b-a3b fp8" "llama-3.2-1b bf16" "qwen2.5-coder-7b fp8"; do
    read -r name weights <<<"$model"
    timeout 300 "$PYTHON" -m fulgur.bench.gpu --model "$name" --weights "$weights" --json "$RESULTS/prompts-$name.json" 2>&1 |
      tee -a "$RESULTS/prompts.txt" || status=1
  done
fi
echo
echo "== summary =="
[ -f "$RESULTS/check.txt" ] && grep -E 'checks passed|^FAIL' "$RESULTS/check.txt" | sort -u
[ -f "$RESULTS/prompts.txt" ] && grep -E 'ttft_ms|join_tok_s' "$RESULTS/prompts.txt"
[ -f "$RESULTS/bench.txt" ] && grep -E 'tok/s|TB/s$|failed|not run' "$RESULTS/bench.txt" | sort -u
exit $status
