#!/usr/bin/env bash
# The embedded models, from the corpus archive to pieces that can be carried away, unattended on one GPU machine.
#
#   bash lab/recipes/embedded.sh --run /tmp/embedded --archive corpus.jsonl.xz [--minutes 25] [--anneal 8] [--distil 4.5]
#                         [--init src/fulgur/assets/60M --init-small src/fulgur/assets/30M --seed 1]
#
# --archive may also be the beginning of the names of its parts (`split -d -b 14M corpus.jsonl.xz corpus.part.`): they are
# joined, and waited for if some are still missing. --init and --init-small go on from the models of an earlier run, at
# lower learning rates; --seed cuts the files another way.
# --minutes is the wall clock of everything. Annealing and distilling get their own minutes, pretraining gets what the
# preparation leaves. Poll RUN/status.txt (one line) and RUN/log; RUN/large-ready and RUN/small-ready appear when the pieces
# of a model are in RUN/out (what rounding costs is measured after that: `export pack --head-bits`), RUN/finished at the end, RUN/failed names stages that failed. Run it again with the same RUN
# and it goes on where it was cut. For a detached run:
#   setsid nohup bash lab/recipes/embedded.sh … > /dev/null 2>&1 &
set -u
ARGUMENTS=("$@")

RUN= ARCHIVE= MINUTES=25 ANNEAL=8 DISTIL=4.5 INIT= INIT_SMALL= SEED=0 SHAPE=60M STUDENT=30M STAGE_OPTIONS= DATA_OPTIONS= CORPUS_OPTIONS= PARTS=8 PASSES=20
while [ $# -gt 0 ]; do
  case "$1" in
    --run) RUN=$2 ;; --archive) ARCHIVE=$2 ;; --minutes) MINUTES=$2 ;; --anneal) ANNEAL=$2 ;; --distil) DISTIL=$2 ;;
    --init) INIT=$2 ;; --init-small) INIT_SMALL=$2 ;; --seed) SEED=$2 ;; --shape) SHAPE=$2 ;; --student) STUDENT=$2 ;; --passes) PASSES=$2 ;; --parts) PARTS=$2 ;;
    --stage-options) STAGE_OPTIONS=$2 ;; --data-options) DATA_OPTIONS=$2 ;; --corpus-options) CORPUS_OPTIONS=$2 ;;
    *) echo "embedded.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
[ -n "$RUN" ] && [ -n "$ARCHIVE" ] || { echo "usage: embedded.sh --run FOLDER --archive FILE [--minutes N] …" >&2; exit 2; }

# The run works on its own copy of the code and of this script: the tree may change while it trains.
if [ -z "${EMBEDDED_COPY:-}" ]; then
  mkdir -p "$RUN/out"
  if [ ! -d "$RUN/src" ]; then cp -r "$(dirname "$0")/../../src" "$RUN/src" && cp -r "$(dirname "$0")/../../lab" "$RUN/lab" && cp "$0" "$RUN/embedded.sh" || exit 1; fi
  if [ -n "$INIT" ] && [ ! -d "$RUN/init" ]; then cp -r "$INIT" "$RUN/init" || exit 1; fi
  if [ -n "$INIT_SMALL" ] && [ ! -d "$RUN/init-small" ]; then cp -r "$INIT_SMALL" "$RUN/init-small" || exit 1; fi
  case "$ARCHIVE" in /*) ;; *) ARGUMENTS+=(--archive "$PWD/$ARCHIVE") ;; esac
  EMBEDDED_COPY=1 exec bash "$RUN/embedded.sh" "${ARGUMENTS[@]}"
fi
BEGAN=$(date +%s)
RUN=$(cd "$RUN" && pwd)
DATA_OPTIONS="$DATA_OPTIONS --seed $SEED"
PRETRAIN_OPTIONS= ANNEAL_OPTIONS= DISTIL_OPTIONS=
if [ -n "$INIT" ]; then  # the model has seen edits: they stay in the mix from the start
  RATES="--matrix-rate 2e-3 --vector-rate 1.7e-3"
  PRETRAIN_OPTIONS="--init $RUN/init $RATES --warmup 60 --fim-share 0.35 --edit-share 0.25" ANNEAL_OPTIONS=$RATES
fi
if [ -n "$INIT_SMALL" ]; then DISTIL_OPTIONS="--init $RUN/init-small --matrix-rate 2e-3 --vector-rate 1.7e-3"; fi
export PYTHONPATH=$RUN/src:$RUN PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR=$RUN/inductor TRITON_CACHE_DIR=$RUN/triton
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True TOKENIZERS_PARALLELISM=false
PYTHON=${PYTHON:-python3}
cd "$RUN" || exit 1
exec >> "$RUN/log" 2>&1
rm -f finished failed large-ready small-ready

# When each stage ends, counted back from the end; what is between them is saving and loading.
seconds() { $PYTHON -c "print(round($1))"; }
SMALL_END=$(seconds "$BEGAN + 60 * $MINUTES - 35")
LARGE_END=$(seconds "$SMALL_END - 60 * $DISTIL - 8")
PRETRAIN_END=$(seconds "$LARGE_END - 60 * $ANNEAL - 8")

say() { echo "$(date -u +%H:%M:%S) [$(( $(date +%s) - BEGAN )) s] $*" | tee "$RUN/status.txt"; }
# attempt NAME COMMAND…: run, and once more if it fails (stages go on from their checkpoint); a failure is recorded, not fatal.
attempt() {
  local name=$1; shift
  for try in 1 2; do
    say "$name (try $try)"
    if "$@" > "$RUN/$name.log" 2>&1; then say "$name done: $(tail -n 1 "$RUN/$name.log")"; return 0; fi
    say "$name FAILED: $(tail -n 3 "$RUN/$name.log" | tr '\n' ' ')"
    cp "$RUN/$name.log" "$RUN/$name-failed.log"
  done
  echo "$name" >> failed
  return 1
}
# A stage compiles at once, then waits for what it starts from: rows, or the model of the stage before.
stage() { local name=$1; shift; attempt "$name" $PYTHON -m "lab.train.$name" --run "$RUN" --wait 1200 $STAGE_OPTIONS "$@"; }
ready() { until [ -e "$1" ] || ! kill -0 "$2" 2> /dev/null; do sleep 0.2; done; }  # wait for a file while a process lives
# The archive or its parts -> RUN/archive.jsonl.xz, complete (its index stands at its end); plain .jsonl is taken as it is.
gather() {
  for try in $(seq 480); do
    if [ -e archive.jsonl.xz ] || [ -e archive.jsonl ]; then return 0; fi
    if [ -e "$ARCHIVE" ]; then cp "$ARCHIVE" joined; else mkdir -p parts && cp "$ARCHIVE"* parts/; cat parts/* > joined; fi
    case "$(head -c 1 joined)" in "{") mv joined archive.jsonl ;; *) xz -l joined > /dev/null 2>&1 && mv joined archive.jsonl.xz || sleep 0.5 ;; esac
  done
  say "the archive $ARCHIVE is not complete"; return 1
}
corpus() { $PYTHON -m lab.train.corpus --archive "$(ls archive.jsonl*)" --out corpus $CORPUS_OPTIONS; }
rows() { local kind=$1; shift; $PYTHON -m lab.train.data "$kind" --corpus corpus --out rows --parts "$PARTS" $DATA_OPTIONS "$@"; }

stage pretrain --shape "$SHAPE" $PRETRAIN_OPTIONS --until "$PRETRAIN_END" &
PRETRAIN_PID=$!

# While the GPU compiles and works, the CPU cores make the rows: some code first, then edits and completions beside more code.
( gather || exit 1
  say "archive complete"
  if [ ! -e corpus/report.json ]; then
    attempt corpus corpus & CORPUS_PID=$!
    ready corpus/report.json $CORPUS_PID  # the record of the files is written while the rows are made
  fi
  { rows code --passes 3
    EDIT_SECONDS=$(( SMALL_END - $(date +%s) - 30 )); [ "$EDIT_SECONDS" -gt 60 ] || EDIT_SECONDS=60
    # A file that hangs a generator must not hang the run: past the time limit its rows are given up.
    nice -n 3 timeout $(( EDIT_SECONDS + 60 )) $PYTHON -m lab.train.data edits --corpus corpus --out rows --passes 1 \
      --minutes "$($PYTHON -c "print($EDIT_SECONDS / 60)")" $DATA_OPTIONS & EDITS=$!
    nice -n 5 $PYTHON -m lab.train.data fim --corpus corpus --out rows $DATA_OPTIONS
    nice -n 5 $PYTHON -m lab.train.data code --corpus corpus --out rows --parts "$PARTS" --first-pass 3 --passes $((PASSES - 3)) $DATA_OPTIONS
    nice -n 10 $PYTHON -m lab.train.data fim --corpus corpus --out rows --first-pass 1 $DATA_OPTIONS
    wait $EDITS
  } > rows.log 2>&1
  wait ) &

# The other stages are started early too: their graphs are compiled, and faults show, before they are needed.
ready pretrain/stepping $PRETRAIN_PID
stage anneal --shape "$SHAPE" $ANNEAL_OPTIONS --until "$LARGE_END" &
ANNEAL_PID=$!
ready anneal/compiled $ANNEAL_PID
stage distil --teacher anneal --teacher-shape "$SHAPE" --shape "$STUDENT" $DISTIL_OPTIONS --until "$SMALL_END" &
DISTIL_PID=$!
wait $PRETRAIN_PID
wait $ANNEAL_PID
if [ -e anneal/checkpoint.pt ]; then
  attempt export-large $PYTHON -m lab.train.export pieces --run "$RUN" --stage anneal --out out && touch large-ready
  attempt quantise-large $PYTHON -m lab.train.quantise --run "$RUN" --stage anneal
  attempt export-bf16-large nice -n 5 $PYTHON -m lab.train.export pieces --run "$RUN" --stage anneal --out bf16 --precision bf16
fi
wait $DISTIL_PID
if [ -e distil/checkpoint.pt ]; then
  attempt export-small $PYTHON -m lab.train.export pieces --run "$RUN" --stage distil --out out && touch small-ready
  attempt quantise-small $PYTHON -m lab.train.quantise --run "$RUN" --stage distil
fi
attempt plot $PYTHON -m lab.train.plot --run "$RUN" --out losses.svg
tar cJf out/logs.tar.xz log ./*.log losses.svg corpus/report.json corpus/manifest.jsonl.xz */losses.jsonl */quantise.json
say "finished$( [ -e failed ] && echo ", failed: $(tr '\n' ' ' < failed)")"
touch finished
