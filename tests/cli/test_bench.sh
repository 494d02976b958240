#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tern bench: flags, bad values, JSON, and small verified sweeps. TERN is the command, that of BUILD if not set.
set -u
TERN=${TERN:-${BUILD:-build}/tern}
DIR=$(mktemp -d) || exit 1
trap 'rm -rf "$DIR"' EXIT
failed=0
SMALL="--hidden 256 --experts 16 --topk 4 --tokens 1,9 --iters 4 --warmup 1"

complain() {
	echo "FAIL: $*" >&2
	sed 's/^/    /' "$DIR/err" >&2
	failed=1
}

# refuses WORDS FLAGS...: exit code 2, and stderr has the words
refuses() {
	words=$1
	shift
	"$TERN" bench "$@" >"$DIR/out" 2>"$DIR/err"
	code=$?
	[ $code -eq 2 ] || complain "tern bench $*: exit code $code, should be 2"
	grep -qF -e "$words" "$DIR/err" || complain "tern bench $*: does not say: $words"
}

# good FLAGS...: exit code 0 and nothing wrong
good() {
	"$TERN" bench "$@" >"$DIR/out" 2>"$DIR/err"
	code=$?
	[ $code -eq 0 ] || complain "tern bench $*: exit code $code"
}

"$TERN" bench --help >"$DIR/out" 2>"$DIR/err" || complain "--help"
for flag in ranks preset hidden experts topk tokens max-tokens mode dtype x-dtype scale payload combine-dtype layout reduce sweep threads \
	weights align capacity slots replicas replica-choice moves replica-ranks spread no-weights routing drop uneven seed input iters warmup wait first-epoch jitter verify graph-tokens \
	only-verify against json trace progress quiet help; do
	grep -q -e "--$flag" "$DIR/out" || complain "--help does not tell of --$flag"
done

refuses '--ranks is "0": allowed are whole numbers from 1' --ranks 0
refuses '--ranks is "-1"' --ranks -1
refuses '--tokens is "1,"' --tokens 1,
refuses '--tokens is "8-4"' --tokens 8-4
refuses '--tokens is "0-4"' --tokens 0-4
refuses '--tokens is ""' --tokens ''
refuses '--mode is "fast": allowed: ll, ht, auto' --mode fast
refuses '--mode is "ll,": allowed: ll' --mode ll,
refuses '--dtype is "int4"' --dtype int4
refuses '--combine-dtype is "fp8"' --combine-dtype fp8
refuses '--layout is "x"' --layout x
refuses '--preset is "gpt-2": allowed are deepseek-v3,' --preset gpt-2
refuses '--preset custom needs --hidden' --preset custom --hidden 64
refuses '--topk is "33"' --topk 33
refuses '--topk is 8, more than the 4 experts' --experts 4
refuses '--routing: routing' --routing nearest
refuses 'exponent must be a number' --routing zipf:x
refuses '--drop is "2"' --drop 2
refuses '--seed is "x"' --seed x
refuses '--against is "gloo"' --against gloo
refuses '--trace does not go with --only-verify' --only-verify --trace "$DIR/trace"
refuses '--against nccl needs --device cuda' --against nccl
refuses '--device cuda is compared with nccl alone' --device cuda --against libfabric
refuses '--tokens has 64, more than --max-tokens, 8' --tokens 64 --max-tokens 8
refuses '--graph-tokens needs --device cuda' --graph-tokens 64
refuses '--graph-tokens is 64, more than --max-tokens, 8' --device cuda --graph-tokens 64 --tokens 4 --max-tokens 8
refuses '--tokens has 64, more than --graph-tokens, 8' --device cuda --graph-tokens 8 --tokens 64
refuses 'is not a flag' deepseek-v3
refuses 'there is nothing to do' --ranks 1 --layout source --reduce home
refuses 'bogus' --bogus

# What the library or the generators refuse is an error of that case, with its cause; a flag is wrong then, too.
refuses TERN_ERR_INVALID --ranks 2 --hidden 4 --experts 4 --topk 2 --tokens 1
refuses no.npy --ranks 2 $SMALL --routing "$DIR/no.npy"
refuses 'must divide the number of ranks, 5' --ranks 5 $SMALL --replica-ranks 2
refuses 'low-latency mode takes only 0' --ranks 1 $SMALL --capacity 5
refuses 'transport is "nonsense"' --ranks 2 --nodes 2 $SMALL --transport nonsense

# A sweep: both modes for each size, and a line that compares them.
good --ranks 2 --hidden 256 --experts 16 --topk 4 --sweep --iters 2 --warmup 1
[ "$(grep -cE '^  custom +(ll|ht) .* (1|4096) ' "$DIR/out")" -eq 4 ] || complain "--sweep: no ends in both modes"
[ "$(grep -cE '^# custom .* (ll|ht)$' "$DIR/out")" -eq 13 ] || complain "--sweep: not 13 sizes compared"
good --ranks 1 --hidden 256 --experts 16 --topk 4 --sweep --tokens 3,9 --mode ht --iters 2 --warmup 1
[ "$(grep -cE '^  custom ' "$DIR/out")" -eq 2 ] || complain "--sweep: --tokens and --mode were not heard"
# What an exchange takes that is not told, and says.
good --ranks 2 --hidden 64 --experts 8 --topk 2 --only-verify --mode auto --tokens 3,300
grep -qE '^  custom +ll .* 3 ' "$DIR/out" && grep -qE '^  custom +ht .* 300 ' "$DIR/out" || complain "--mode auto: not ll for 3 tokens and ht for 300"
good --ranks 2 $SMALL --threads 3 --verify --mode all

good --ranks 1 $SMALL --verify --mode all --dtype all --layout all --reduce all --weights all
grep -q ", 0 wrong values" "$DIR/out" || complain "no summary"
good --ranks 2 $SMALL --verify --mode all --dtype all --layout all --reduce all --slots 2 --input exact
good --ranks 3 $SMALL --only-verify --mode all --dtype fp8 --scale ue8m0 --x-dtype fp16 --layout all --uneven --drop 0.3 --align 4
good --ranks 3 $SMALL --only-verify --mode all --dtype fp8 --x-dtype fp8 --layout all --replicas 5 --spread --input special
good --ranks 3 $SMALL --verify --mode all --dtype bf16 --layout all --replicas 5 --moves 2 --slots 2 --replica-choice in-turn
good --ranks 4 $SMALL --only-verify --mode all --dtype bf16 --layout all --reduce all --replica-ranks 2 --routing grouped
good --ranks 4 $SMALL --only-verify --mode all --dtype fp32 --layout all --routing one --no-weights --max-tokens 40
good --ranks 2 --preset all --tokens 3 --iters 2 --only-verify --routing zipf:1.2

good --ranks 3 $SMALL --only-verify --mode ht --layout padded --capacity 27
good --ranks 3 $SMALL --only-verify --mode ht --layout all --capacity 108

good --ranks 3 $SMALL --verify --mode all --first-epoch 4294967290 --iters 20 --slots 2

good --ranks 3 $SMALL --only-verify --mode all --jitter 3000 --slots 2

# The same with less room than there are rows: every rank hears of it.
"$TERN" bench --ranks 3 $SMALL --mode ht --layout padded --routing one --capacity 5 >"$DIR/out" 2>"$DIR/err"
[ $? -eq 1 ] || complain "rows beyond the capacity: the exit code is not 1"
grep -q TERN_ERR_CAPACITY "$DIR/err" || complain "rows beyond the capacity: no cause"

# A trace: 3 tokens with experts of 16, and weights.
{
	printf "\223NUMPY\001\000\072\000{'descr': '<i4', 'fortran_order': False, 'shape': (3, 4)}\n"
	printf '\000\000\000\000\001\000\000\000\002\000\000\000\377\377\377\377'
	printf '\017\000\000\000\016\000\000\000\003\000\000\000\005\000\000\000'
	printf '\007\000\000\000\377\377\377\377\377\377\377\377\010\000\000\000'
} >"$DIR/ids.npy"
{
	printf "\223NUMPY\001\000\072\000{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)}\n"
	for i in 1 2 3 4 5 6 7 8 9 10 11 12; do printf '\000\000\200\077'; done
} >"$DIR/weights.npy"
good --ranks 2 $SMALL --only-verify --routing "$DIR/ids.npy" --layout all
good --ranks 2 $SMALL --only-verify --routing "$DIR/ids.npy,$DIR/weights.npy" --mode all
"$TERN" bench --ranks 2 $SMALL --topk 3 --routing "$DIR/ids.npy" >"$DIR/out" 2>"$DIR/err" && complain "a trace of top-4 serves top-3"
grep -q "shape \[tokens\]\[3\]" "$DIR/err" || complain "a trace of top-4 serves top-3: no cause"

# The program for --against is looked for beside the command.
cp "$TERN" "$DIR/tern"
"$DIR/tern" bench --ranks 1 $SMALL --against mpi >"$DIR/out" 2>"$DIR/err" && complain "--against mpi without the program"
grep -q "needs $DIR/tern-against-mpi" "$DIR/err" || complain "--against mpi without the program: no cause"

good --ranks 2 $SMALL --verify --quiet --json "$DIR/a.json"
[ -s "$DIR/out" ] && complain "--quiet prints"
good --ranks 2 $SMALL --json - && cp "$DIR/out" "$DIR/b.json"
if command -v python3 >/dev/null; then
	for file in a b; do
		python3 -m json.tool "$DIR/$file.json" >/dev/null 2>"$DIR/err" || complain "$file.json is not JSON"
	done
	python3 - "$DIR/a.json" 2>"$DIR/err" <<-'PYTHON' || complain "a.json lacks something"
		import json, sys
		report = json.load(open(sys.argv[1]))
		assert report["settings"]["ranks"] == 2 and report["machine"]["cpu"] and report["date"]
		assert report["settings"]["paths_of_rank_0"] == "rank 1: shared memory"
		assert len(report["results"]) == 2
		for result in report["results"]:
		    assert result["wrong"] == 0 and result["rounds_verified"] == 4 and result["rounds"] == 4
		    assert 0 < result["pair_us"]["p50"] <= result["pair_us"]["p99"] <= result["pair_us"]["max"]
		    assert result["dispatch_bytes"] > 0 and result["window_bytes"] > 0
	PYTHON
fi

# Raw writes need a network, and one of libfabric's.
"$TERN" bench --ranks 2 $SMALL --against libfabric >"$DIR/out" 2>"$DIR/err" && complain "--against libfabric without a network"
grep -q "nothing goes over a network" "$DIR/err" || complain "--against libfabric without a network: no cause"
TERN_FORCE_ENGINE=1 TERN_TRANSPORT=shm "$TERN" bench --ranks 2 $SMALL --against libfabric >"$DIR/out" 2>"$DIR/err" &&
	complain "--against libfabric over shm"
if TERN_FORCE_ENGINE=1 TERN_TRANSPORT=ofi "$TERN" bench --ranks 3 $SMALL --only-verify >"$DIR/out" 2>"$DIR/err"; then
	export TERN_FORCE_ENGINE=1 TERN_TRANSPORT=ofi
	good --ranks 3 $SMALL --mode all --uneven --slots 2 --verify --against libfabric --json "$DIR/c.json"
	unset TERN_FORCE_ENGINE TERN_TRANSPORT
	grep -q "over raw" "$DIR/out" || complain "--against libfabric: no ratio in the table"
	command -v python3 >/dev/null && python3 - "$DIR/c.json" 2>"$DIR/err" <<-'PYTHON' || complain "c.json lacks something"
		import json, sys
		results = json.load(open(sys.argv[1]))["results"]
		assert len(results) == 4
		for result in results:
		    assert result["raw_wrong"] == 0 and result["raw_bytes"] > 0
		    assert result["raw_pair_us"]["p50"] > 0 and result["pair_over_raw"] > 0
	PYTHON
else
	echo "skip: --against libfabric: $(head -n 1 "$DIR/err")"
fi

# Under a launcher the number of ranks is the launcher's.
"$TERN" run -n 2 -- "$TERN" bench $SMALL --only-verify >"$DIR/out" 2>"$DIR/err" || complain "under tern run"
grep -q "2 ranks" "$DIR/out" || complain "under tern run: not 2 ranks"
"$TERN" run -n 2 -- "$TERN" bench $SMALL --ranks 3 >"$DIR/out" 2>"$DIR/err"
[ $? -eq 2 ] || complain "under tern run: --ranks 3 of 2 is accepted"
grep -q "the launcher has started 2" "$DIR/err" || complain "under tern run: --ranks 3 of 2: no cause"

[ $failed -eq 0 ] && echo "ok"
exit $failed
