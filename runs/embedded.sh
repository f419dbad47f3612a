#!/usr/bin/env bash
# The embedded models, from the corpus archive to pieces that can be carried away, unattended on one GPU machine.
#
#   bash runs/embedded.sh --run /tmp/embedded --archive corpus.jsonl.xz [--minutes 25] [--anneal 8] [--distil 4.5]
#                         [--init src/fulgur/assets/60M --seed 1]
#
# --archive may also be the beginning of the names of its parts (`split -d -b 14M corpus.jsonl.xz corpus.part.`): they are
# joined. --init goes on from a model of an earlier run, at two thirds of the learning rate; --seed cuts the files another way.
# --minutes is the wall clock of everything. Annealing and distilling get their own minutes, pretraining gets what the
# preparation leaves. Poll RUN/status.txt (one line) and RUN/log; RUN/finished appears at the end, RUN/failed names stages
# that failed. Run it again with the same RUN and it goes on where it was cut. For a detached run:
#   setsid nohup bash runs/embedded.sh … > /dev/null 2>&1 &
set -u
ARGUMENTS=("$@")

RUN= ARCHIVE= MINUTES=25 ANNEAL=8 DISTIL=4.5 INIT= SEED=0 SHAPE=60M STUDENT=30M STAGE_OPTIONS= DATA_OPTIONS= CORPUS_OPTIONS= WARM=1 PASSES=4
while [ $# -gt 0 ]; do
  case "$1" in
    --run) RUN=$2 ;; --archive) ARCHIVE=$2 ;; --minutes) MINUTES=$2 ;; --anneal) ANNEAL=$2 ;; --distil) DISTIL=$2 ;;
    --init) INIT=$2 ;; --seed) SEED=$2 ;; --shape) SHAPE=$2 ;; --student) STUDENT=$2 ;; --passes) PASSES=$2 ;; --warm) WARM=$2 ;;
    --stage-options) STAGE_OPTIONS=$2 ;; --data-options) DATA_OPTIONS=$2 ;; --corpus-options) CORPUS_OPTIONS=$2 ;;
    *) echo "embedded.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
[ -n "$RUN" ] && [ -n "$ARCHIVE" ] || { echo "usage: embedded.sh --run FOLDER --archive FILE [--minutes N] …" >&2; exit 2; }

# The run works on its own copy of the code and of this script: the tree may change while it trains.
if [ -z "${EMBEDDED_COPY:-}" ]; then
  mkdir -p "$RUN/out"
  if [ ! -d "$RUN/src" ]; then cp -r "$(dirname "$0")/../src" "$RUN/src" && cp "$0" "$RUN/embedded.sh" || exit 1; fi
  if [ ! -e "$RUN/archive.jsonl.xz" ] && [ ! -e "$RUN/archive.jsonl" ]; then
    if [ -e "$ARCHIVE" ]; then cp "$ARCHIVE" "$RUN/joined"; else cat "$ARCHIVE"* > "$RUN/joined"; fi || exit 1
    # A corrupt or incomplete archive is found here, not after the preparation; plain .jsonl is taken as it is.
    case "$(head -c 1 "$RUN/joined")" in "{") mv "$RUN/joined" "$RUN/archive.jsonl" ;; *) xz -l "$RUN/joined" > /dev/null && mv "$RUN/joined" "$RUN/archive.jsonl.xz" || exit 1 ;; esac
  fi
  if [ -n "$INIT" ] && [ ! -d "$RUN/init" ]; then cp -r "$INIT" "$RUN/init" || exit 1; fi
  EMBEDDED_COPY=1 exec bash "$RUN/embedded.sh" "${ARGUMENTS[@]}"
fi
BEGAN=$(date +%s)
RUN=$(cd "$RUN" && pwd)
ARCHIVE=$RUN/archive.jsonl.xz; [ -e "$ARCHIVE" ] || ARCHIVE=$RUN/archive.jsonl
DATA_OPTIONS="$DATA_OPTIONS --seed $SEED"
PRETRAIN_OPTIONS=; [ -n "$INIT" ] && PRETRAIN_OPTIONS="--init $RUN/init --matrix-rate 2.3e-3 --vector-rate 2e-3"
ANNEAL_OPTIONS=; [ -n "$INIT" ] && ANNEAL_OPTIONS="--matrix-rate 2.3e-3 --vector-rate 2e-3"
export PYTHONPATH=$RUN/src PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR=$RUN/inductor TRITON_CACHE_DIR=$RUN/triton
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True TOKENIZERS_PARALLELISM=false
PYTHON=${PYTHON:-python3}
cd "$RUN" || exit 1
exec >> "$RUN/log" 2>&1
rm -f finished failed

say() { echo "$(date -u +%H:%M:%S) [$(( $(date +%s) - BEGAN )) s] $*" | tee "$RUN/status.txt"; }
left() { $PYTHON -c "print(round($MINUTES - ($(date +%s) - $BEGAN) / 60 - $1, 3))"; }  # minutes left after keeping $1
# attempt NAME COMMAND…: run, and once more if it fails (stages go on from their checkpoint); a failure is recorded, not fatal.
attempt() {
  local name=$1; shift
  for try in 1 2; do
    say "$name (try $try)"
    if "$@" > "$RUN/$name.log" 2>&1; then say "$name done: $(tail -n 1 "$RUN/$name.log")"; return 0; fi
    say "$name FAILED: $(tail -n 3 "$RUN/$name.log" | tr '\n' ' ')"
  done
  echo "$name" >> failed
  return 1
}
stage() { local name=$1; shift; attempt "$name" $PYTHON -m "fulgur.train.$name" --run "$RUN" $STAGE_OPTIONS "$@"; }

if [ "$WARM" = 1 ]; then
  $PYTHON -m fulgur.train.warm pretrain --run "$RUN/rehearsal" --shape "$SHAPE" $STAGE_OPTIONS > rehearsal.log 2>&1 &
  WARM_PID=$!
fi
[ -e corpus/report.json ] || attempt corpus $PYTHON -m fulgur.train.corpus --archive "$ARCHIVE" --out corpus $CORPUS_OPTIONS
[ -e rows/code-0.done ] || attempt data $PYTHON -m fulgur.train.data code --corpus corpus --out rows $DATA_OPTIONS

# While the GPU works, the CPU cores make the other passes and the edits.
EDIT_MINUTES=$(left "$($PYTHON -c "print($ANNEAL + $DISTIL + 2.5)")")
EDIT_LIMIT=$($PYTHON -c "print(max(60, int(60 * $EDIT_MINUTES + 50)))")
( nice -n 5 $PYTHON -m fulgur.train.data code --corpus corpus --out rows --first-pass 1 --passes 1 $DATA_OPTIONS
  nice -n 5 $PYTHON -m fulgur.train.data fim --corpus corpus --out rows $DATA_OPTIONS
  # A file that hangs a generator must not hang the run: past the time limit its rows are given up.
  nice -n 10 timeout "$EDIT_LIMIT" $PYTHON -m fulgur.train.data edits --corpus corpus --out rows --passes 2 --minutes "$EDIT_MINUTES" $DATA_OPTIONS & EDITS=$!
  nice -n 15 $PYTHON -m fulgur.train.data code --corpus corpus --out rows --first-pass 2 --passes $((PASSES - 2)) $DATA_OPTIONS
  wait $EDITS ) > rows.log 2>&1 &
ROWS_PID=$!
if [ "$WARM" = 1 ]; then
  if wait $WARM_PID; then say "rehearsal: $(tail -n 2 rehearsal.log | tr '\n' ' ')"; else say "rehearsal FAILED: $(tail -n 3 rehearsal.log | tr '\n' ' ')"; echo rehearsal >> failed; fi
  # The other stages are rehearsed beside pretraining: their graphs are compiled before they are needed.
  ( nice -n 5 $PYTHON -m fulgur.train.warm rest --run "$RUN/rehearsal" --student "$STUDENT" $STAGE_OPTIONS > rehearsal-rest.log 2>&1 \
    || echo "rehearsal of the rest FAILED: $(tail -n 3 rehearsal-rest.log | tr '\n' ' ')" ) &
  REST_PID=$!
fi

stage pretrain --shape "$SHAPE" $PRETRAIN_OPTIONS --minutes "$(left "$($PYTHON -c "print($ANNEAL + $DISTIL + 1.5)")")"
say "waiting for edits"
wait $ROWS_PID
[ "$WARM" = 1 ] && wait $REST_PID
tail -n 3 rows.log
stage anneal --minutes "$ANNEAL" $ANNEAL_OPTIONS
BEST=anneal; [ -e anneal/checkpoint.pt ] || BEST=pretrain
( attempt quantise-large $PYTHON -m fulgur.train.quantise --run "$RUN" --stage $BEST
  attempt export-large $PYTHON -m fulgur.train.export pieces --run "$RUN" --stage $BEST --out out ) &
LARGE_PID=$!
stage distil --teacher $BEST --shape "$STUDENT" --minutes "$(left 1.0)"
wait $LARGE_PID
attempt quantise-small $PYTHON -m fulgur.train.quantise --run "$RUN" --stage distil
attempt export-small $PYTHON -m fulgur.train.export pieces --run "$RUN" --stage distil --out out
attempt plot $PYTHON -m fulgur.train.plot --run "$RUN" --out losses.svg
tar cJf out/logs.tar.xz log ./*.log losses.svg corpus/report.json corpus/manifest.jsonl.xz */losses.jsonl */quantise.json
attempt export-bf16-large $PYTHON -m fulgur.train.export pieces --run "$RUN" --stage $BEST --out out --precision bf16
attempt export-bf16-small $PYTHON -m fulgur.train.export pieces --run "$RUN" --stage distil --out out --precision bf16
say "finished$( [ -e failed ] && echo ", failed: $(tr '\n' ' ' < failed)")"
touch finished
