#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Checks the models of the protocol with spin: every state of each, none sampled. A model with a BREAK_x must fail, and in
# the way that is expected: a mistake that goes unnoticed would mean that the model proves nothing. docs/protocol.md says what is proved.
#
# run.sh [--all] [NAME-PATTERN]: exits 0 if all is as expected, 1 if not, 77 without spin or a C compiler. Without --all
# each model holds in its smallest shapes, and every mistake is made; the larger shapes are left to make soak.

models=$(cd "$(dirname "$0")" && pwd)
: "${CC:=cc}"

outcome() { # of a checker's output
	if grep -Eq 'too small|out of memory|truncated|exceeded' "$1"; then
		echo incomplete
	elif grep -q 'errors: 0' "$1"; then
		echo holds
	elif grep -q 'assertion violated' "$1"; then
		echo asserts
	elif grep -q 'invalid end state' "$1"; then
		echo hangs
	else
		echo broken
	fi
}

# run_at SECONDS COMPILER...: compiles the checker, and runs it for so long, of CPU; 152 if that is not enough.
run_at() {
	limit=$1
	shift
	"$@" -w -DSAFETY $reduce -o pan pan.c >out 2>&1 && (
		ulimit -S -t "$limit"
		exec ./pan -m20000 -w20 -n # it grows
	) >out 2>&1
}

# A mistake that one order of search comes to late another often meets at once. Compiling takes longest where there are
# few states: -O2 is for the others. tcc takes a twentieth of the time that gcc takes without optimising.
search() {
	fast=${TCC:-"$CC" -O0}
	if [ "$expected" != holds ]; then
		for order in '' -DT_REVERSE -DREVERSE; do
			run_at 1 $fast $order
			[ $? -eq 152 ] || return
		done
	fi
	run_at 6 $fast
	[ $? -ne 152 ] || run_at unlimited "$CC" -O2
}

# check OUTCOME MODEL [-DNAME[=VALUE] ...]: holds, asserts (an assertion fails) or hangs (somebody waits for ever)
check() {
	expected=$1
	model=$2
	shift 2
	work=$(mktemp -d) || exit 1
	trap 'rm -rf "$work"' EXIT
	trap 'exit 1' INT TERM
	reduce=
	case $* in *DEATH=1*) reduce=-DNOREDUCE ;; esac # the reduction does not know about "unless"
	(cd "$work" && spin "$@" -a "$models/$model.pml" >out 2>&1 && search)
	found=$(outcome "$work/out")
	states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' "$work/out")
	seconds=$(sed -n 's/.*elapsed time \([0-9.]*\).*/\1/p' "$work/out")
	verdict=ok
	if [ "$found" != "$expected" ]; then
		verdict="FAIL, expected: $expected"
		tail -n 15 "$work/out"
	fi
	printf '%-8s %9s states %6s s  %s: %s\n' "$found" "${states:--}" "${seconds:--}" "$model${*:+ $*}" "$verdict"
}

if [ "${1:-}" = --check ]; then
	shift
	check "$@"
	exit
fi

large=no
if [ "${1:-}" = --all ]; then
	large=yes
	shift
fi
pattern=${1:-*}
command -v spin >/dev/null || { echo "skip: spin is not installed"; exit 77; }
command -v "$CC" >/dev/null || { echo "skip: no C compiler"; exit 77; }
list=$(mktemp) || exit 1
results=$(mktemp) || exit 1
trap 'rm -f "$list" "$results"' EXIT
trap 'exit 1' INT TERM
started=$(date +%s)

expect() {
	expected=$1
	shift
	case "$*" in $pattern) echo "$expected $*" >>"$list" ;; esac
}

expect_large() { # what has many states; the same with fewer ranks, slots or chunks is always looked at
	[ $large = no ] || expect "$@"
}

# low-latency mode
expect holds exchange_ll
expect holds exchange_ll -DFIRST=7
expect_large holds exchange_ll -DRANKS=3 -DROUNDS=1 -DEARLY_DATA=1
expect_large holds exchange_ll -DRANKS=3 -DEARLY_DATA=1
expect_large holds exchange_ll -DSLOTS=2 -DROUNDS=1 -DEARLY_DATA=1
expect_large holds exchange_ll -DSLOTS=2 -DROUNDS=2 -DEARLY_DATA=1
expect_large holds exchange_ll -DDEATH=1
expect_large holds exchange_ll -DRANKS=3 -DROUNDS=1 -DDEATH=1 -DVICTIM=1 -DEARLY_DATA=1 -DRELEASE=0
expect asserts exchange_ll -DWITNESS
expect asserts exchange_ll -DBREAK_WORD_BEFORE_DATA
expect asserts exchange_ll -DBREAK_WAIT_FOR_ALL_BUT_ONE
expect asserts exchange_ll -DBREAK_WAIT_FOR_ALL_BUT_ONE -DRANKS=3 -DEARLY_DATA=1
expect asserts exchange_ll -DBREAK_SKIP_MARKS
expect asserts exchange_ll -DBREAK_EARLY_RESULTS_WORD
expect asserts exchange_ll -DBREAK_NEXT_ROUND_BEFORE_RESULTS
expect asserts exchange_ll -DBREAK_ZERO_WORDS -DFIRST=0
expect asserts exchange_ll -DBREAK_NO_SECOND_LOOK
expect asserts exchange_ll -DBREAK_LEAVE_UNDRAINED
expect_large hangs exchange_ll -DBREAK_SILENT_SURVIVOR -DRANKS=3 -DROUNDS=1 -DDEATH=1 -DVICTIM=1 -DEARLY_DATA=1 -DRELEASE=0
expect asserts exchange_ll -DBREAK_ONE_REGION_FOR_ALL_SLOTS -DSLOTS=2 -DROUNDS=2 -DEARLY_DATA=1
expect hangs exchange_ll -DBREAK_SLOT_ORDER -DSLOTS=2 -DROUNDS=2 -DEARLY_DATA=1

# high-throughput mode
expect holds exchange_ht
expect holds exchange_ht -DFIRST=7
expect_large holds exchange_ht -DRANKS=3 -DROUNDS=1 -DEARLY_DATA=1
expect_large holds exchange_ht -DRANKS=3 -DROUNDS=2 -DEARLY_DATA=1
expect_large holds exchange_ht -DRANKS=3 -DEARLY_DATA=1 -DRELEASE=0
expect_large holds exchange_ht -DSLOTS=2 -DROUNDS=2 -DEARLY_DATA=1 -DRELEASE=0
expect holds exchange_ht -DDEATH=1 -DROUNDS=1
expect_large holds exchange_ht -DDEATH=1
expect_large holds exchange_ht -DRANKS=3 -DROUNDS=1 -DDEATH=1 -DVICTIM=1 -DEARLY_DATA=1 -DRELEASE=0 -DABANDON=0
expect asserts exchange_ht -DWITNESS
expect asserts exchange_ht -DBREAK_ONE_PARITY
expect holds exchange_ht -DBREAK_ONE_PARITY -DABANDON=0
expect asserts exchange_ht -DBREAK_OWN_VERDICT
expect asserts exchange_ht -DBREAK_WORD_BEFORE_DATA
expect asserts exchange_ht -DBREAK_WAIT_FOR_ALL_BUT_ONE
expect asserts exchange_ht -DBREAK_ROWS_BEFORE_COUNTS
# A mark that nobody waits for may still fly when the next word is written to its place.
expect asserts exchange_ht -DBREAK_SKIP_MARKS
# Output rows are guarded twice: by the words of combine and by the counts of the next round. Either guard is enough.
expect holds exchange_ht -DBREAK_ROWS_BEFORE_COUNTS -DABANDON=0
expect holds exchange_ht -DBREAK_EARLY_RESULTS_WORD
expect asserts exchange_ht -DBREAK_ROWS_BEFORE_COUNTS -DBREAK_SKIP_MARKS -DABANDON=0
expect asserts exchange_ht -DBREAK_ROWS_BEFORE_COUNTS -DBREAK_EARLY_RESULTS_WORD -DABANDON=0 -DRELEASE=0
expect asserts exchange_ht -DBREAK_ZERO_WORDS -DFIRST=7
expect asserts exchange_ht -DBREAK_NO_SECOND_LOOK
expect asserts exchange_ht -DBREAK_LEAVE_UNDRAINED
expect hangs exchange_ht -DBREAK_SILENT_SURVIVOR -DRANKS=3 -DROUNDS=1 -DDEATH=1 -DVICTIM=1 -DEARLY_DATA=1 -DRELEASE=0 -DABANDON=0
expect hangs exchange_ht -DBREAK_SLOT_ORDER -DSLOTS=2 -DROUNDS=2 -DEARLY_DATA=1 -DRELEASE=0

# rounds with plans: nothing but the words of combine guards output rows; a plan that is combined again waits for all
for plans in 1 2 3; do
	expect holds exchange_ht -DPLANS=$plans
	expect holds exchange_ht -DPLANS=$plans -DIN_A_ROW
	expect_large holds exchange_ht -DPLANS=$plans -DRANKS=3 -DROUNDS=2 -DEARLY_DATA=1 -DRELEASE=0
	expect_large holds exchange_ht -DPLANS=$plans -DSLOTS=2 -DROUNDS=2 -DEARLY_DATA=1 -DRELEASE=0
done
expect asserts exchange_ht -DPLANS=1 -DBREAK_EARLY_RESULTS_WORD -DABANDON=0
expect asserts exchange_ht -DPLANS=2 -DBREAK_NO_BEGINNING -DABANDON=0
expect asserts exchange_ht -DPLANS=3 -DBREAK_NO_BEGINNING -DABANDON=0
expect asserts exchange_ht -DPLANS=3 -DBREAK_ONE_PARITY
expect holds exchange_ll -DPLANS=2
expect holds exchange_ll -DPLANS=2 -DIN_A_ROW
expect_large holds exchange_ll -DPLANS=2 -DRANKS=3 -DROUNDS=2 -DEARLY_DATA=1 -DRELEASE=0
expect asserts exchange_ll -DPLANS=2 -DBREAK_NO_BEGINNING

# sleeping and waking
expect holds event_count
expect holds event_count -DAHEAD=0
expect holds event_count -DSLICES=1
expect_large holds event_count -DSENDERS=3 -DROUNDS=2
expect_large holds event_count -DSENDERS=3 -DROUNDS=2 -DAHEAD=0
expect_large holds event_count -DDEATH=1 -DSLICES=1
# Who stops between its word and its wake-up wakes nobody: after a death, the end of the slice does.
expect hangs event_count -DDEATH=1
for broken in READ_WAITERS_FIRST RING_BEFORE_WORD BASE_FROM_DOORBELL NO_LAST_LOOK COUNT_AFTER_LOOK WEAK_WAITERS; do
	expect hangs event_count -DBREAK_$broken
done
expect hangs event_count -DBREAK_READ_WAITERS_FIRST -DSENDERS=3 -DROUNDS=2

# a round made again when members have died
expect holds replay
expect holds replay -DRANKS=2
expect holds replay -DDEATHS=2
expect_large holds replay -DROUNDS=3 -DDEATHS=2
expect asserts replay -DWITNESS
for broken in OLD_EPOCHS ONE_MORE COUNT_TWICE NO_STOP; do
	expect asserts replay -DBREAK_$broken
done
expect hangs replay -DBREAK_NO_SERVICE

# weights that move while sources are passed over, wake and die
expect holds weights
expect_large holds weights -DPASSES=5
for broken in NO_SUM OLD_ANSWERS SUM_THE_SLOT WRITE_THE_PLACE; do
	expect asserts weights -DBREAK_$broken
done
expect hangs weights -DBREAK_WAIT_FOR_EVER

# work on rows by several threads
expect holds row_work -DOPS=2
expect_large holds row_work
expect_large holds row_work -DOPS=4
expect_large holds row_work -DPLACES=3 -DOPS=4 -DRING_AT=2
expect asserts row_work -DWITNESS
for broken in PLAIN_TAKE DONE_EARLY REUSE OFFER_FIRST NO_JOIN; do
	expect asserts row_work -DBREAK_$broken
done
expect hangs row_work -DBREAK_SLEEP_UNSEEN

# the engine: ring, credits, messages, the exchange's staging
expect holds ring
expect holds ring -DWRITERS=3 -DCOMMANDS=1
expect_large holds ring -DWRITERS=3 -DSLEEPS=0
expect_large holds ring -DENTRIES=4 -DLAPS=2
expect asserts ring -DWITNESS
expect asserts ring -DBREAK_NO_ROOM_CHECK
expect asserts ring -DBREAK_TURN_FIRST
expect asserts ring -DBREAK_ROOM_BEFORE_COPY
expect asserts ring -DBREAK_FLAG_FOR_LAP
for broken in TICKET_FIRST KEEP_ROOM BELL_FIRST NO_LAST_LOOK LISTEN_AFTER_LOOK; do
	expect hangs ring -DBREAK_$broken
done
# Each of these orders guards the other.
expect_large holds ring -DBREAK_READ_WAITERS_FIRST
expect_large holds ring -DBREAK_ANNOUNCE_LATE
expect hangs ring -DBREAK_READ_WAITERS_FIRST -DBREAK_ANNOUNCE_LATE
expect_large holds credits
expect holds credits -DDEPTH=2 -DPEER_DEPTH=2
expect_large holds credits -DITEMS=1 -DPIECES=5
expect_large holds credits -DORDERED=0 -DITEMS=1
expect_large holds credits -DNICS=2 -DDEPTH=2 -DITEMS=1 -DPIECES=2 -DMORTAL=1
expect holds credits -DMORTAL=1 -DITEMS=1
expect holds credits -DMORTAL=1 -DPIECES=1 -DITEMS=3 -DDEPTH=2
expect holds credits -DSTALLED=1 -DPEER_DEPTH=2
expect asserts credits -DWITNESS
expect hangs credits -DBREAK_NO_NIC_LIMIT
expect hangs credits -DBREAK_NO_LIMIT -DPIECES=5 -DITEMS=1
expect hangs credits -DBREAK_LAST_UNSIGNALLED
expect hangs credits -DBREAK_FORGET_COVERS
expect hangs credits -DBREAK_PLACE_NOT_KEPT -DDEPTH=2 -DPEER_DEPTH=2
expect hangs credits -DBREAK_NO_PEER_DEPTH -DSTALLED=1 -DPEER_DEPTH=2
expect asserts credits -DBREAK_EARLY_IMMEDIATE -DORDERED=0 -DITEMS=1
expect asserts credits -DBREAK_EARLY_IMMEDIATE -DNICS=2 -DDEPTH=2 -DITEMS=1
expect asserts credits -DBREAK_NO_GENERATION -DMORTAL=1 -DPIECES=1 -DITEMS=3 -DDEPTH=2
expect asserts credits -DBREAK_KEEP_UNSIGNALLED -DMORTAL=1 -DITEMS=1
expect holds messages
expect holds messages -DCREDITS=1
expect holds messages -DCREDITS=4 -DMESSAGES=12
expect asserts messages -DWITNESS
expect asserts messages -DBREAK_RETURN_ON_ARRIVAL
expect asserts messages -DBREAK_LOSE_ON_AGAIN
expect asserts messages -DBREAK_PLAIN_EXCHANGE
expect asserts messages -DBREAK_NO_CREDITS
expect hangs messages -DBREAK_RETURN_WHEN_ALL
expect hangs messages -DBREAK_NO_RETURN
expect holds staging
expect_large holds staging -DCOUNTS=1
expect asserts staging -DWITNESS
expect asserts staging -DBITS=2 -DCOUNTS=1
expect asserts staging -DBREAK_NO_BEGIN
expect asserts staging -DBREAK_NO_BEGIN -DCOUNTS=1
expect asserts staging -DBREAK_IMMEDIATE_FIRST
expect asserts staging -DBREAK_OWN_WORD -DCOUNTS=1 -DROUNDS=6
expect asserts staging -DBREAK_NEVER_BACK -DCOUNTS=1

# rows and results between nodes
expect_large holds channels
expect_large holds channels -DCHUNKS=1
expect holds channels -DCHUNKS=1 -DROUNDS=1 -DROWS=2
expect_large holds channels -DCHUNKS=1 -DROUNDS=1 -DSLOTS=2
expect_large holds channels -DCHUNKS=1 -DROUNDS=1 -DDEATH=1 -DVICTIM=BEHIND
for victim in GATEWAY SOURCE; do
	expect_large holds channels -DCHUNKS=1 -DROUNDS=1 -DDEATH=1 -DVICTIM=$victim
done
expect asserts channels -DWITNESS
for broken in NO_CREDIT NO_COMPLETION CREDIT_FIRST WORD_BEFORE_ROWS OWN_WORD_FIRST LEAVE_UNSETTLED; do
	expect asserts channels -DBREAK_$broken -DCHUNKS=1
done
expect asserts channels -DBREAK_WORD_AT_LAST
# Output rows are guarded twice here too.
expect_large holds channels -DBREAK_ROWS_BEFORE_COUNTS -DCHUNKS=1
expect_large holds channels -DBREAK_EARLY_RESULTS_WORD -DCHUNKS=1
expect asserts channels -DBREAK_ROWS_BEFORE_COUNTS -DBREAK_EARLY_RESULTS_WORD -DCHUNKS=1
expect hangs channels -DBREAK_SILENCE_FOR_NOTHING -DCHUNKS=1
expect hangs channels -DBREAK_CALLER_RELAYS -DCHUNKS=1 -DROUNDS=1 -DSLOTS=2
expect hangs channels -DBREAK_TRUST_GATEWAY -DCHUNKS=1 -DROUNDS=1 -DDEATH=1
expect holds pieces
expect holds pieces -DPOOL=1
expect_large holds pieces -DSLOTS=2
expect asserts pieces -DWITNESS
expect asserts pieces -DBREAK_NO_COMPLETION
expect asserts pieces -DBREAK_WORD_AT_NOTE
expect asserts pieces -DBREAK_KEEP_COUNT
expect hangs pieces -DBREAK_RESULTS_BEFORE_DISPATCH

# GPUs and ranks on other nodes
for order in NONE OWNER PINNED; do
	expect holds far -DORDER=$order
done
expect holds far -DROUNDS=3 -DRUNS=1
expect holds far -DORDER=OWNER -DBREAK_NO_FLUSH # it is not what makes that right
expect asserts far -DWITNESS
for broken in NO_FLUSH WORD_BEFORE_FLUSH FLUSH_AT_HEAD HEAD_ON_DEVICE; do
	expect asserts far -DBREAK_$broken
done
expect holds hops
expect holds hops -DHIGH=1
expect holds hops -DROUNDS=3
expect_large holds hops -DHIGH=1 -DROUNDS=3
expect holds hops -DSOURCES=2 -DROUNDS=1
expect_large holds hops -DSOURCES=2
expect_large holds hops -DSOURCES=2 -DROUNDS=1 -DHIGH=1
expect holds hops -DDEATH=1 -DROUNDS=1
expect holds hops -DDEATH=1 -DROUNDS=1 -DHIGH=1
expect_large holds hops -DDEATH=1
expect_large holds hops -DDEATH=1 -DHIGH=1
expect asserts hops -DWITNESS=FULL
expect asserts hops -DWITNESS=RELEASED -DHIGH=1
expect asserts hops -DWITNESS=ABANDONED -DHIGH=1
for broken in GATEWAY_ALONE WORD_AT_HEAD MARK_FIRST NO_MARK NO_SECOND_LOOK LEAVE_FIRST; do
	for high in 0 1; do
		expect asserts hops -DBREAK_$broken -DHIGH=$high
	done
done
expect asserts hops -DBREAK_BLAME_SOURCE -DHIGH=1
expect hangs hops -DBREAK_LOOKS_AFTER_NOBODY -DDEATH=1 -DROUNDS=1
expect hangs hops -DBREAK_OWN_FIRST -DSOURCES=2
# Rows of an older round that are passed on once more lie where nobody looks until newer ones come, by the same hands.
expect holds hops -DBREAK_OLD_WAY
expect holds internode -DROUNDS=1
expect_large holds internode
expect holds internode -DROUNDS=3 -DRUNS=0
expect_large holds internode -DCOUNTS=1 -DRUNS=0
expect_large holds internode -DSLOTS=2 -DROUNDS=1 -DRUNS=0 -DTOGETHER=1
expect_large holds internode -DDEATH=1 -DROUNDS=1
expect holds internode -DDEATH=1 -DRUNS=0
expect_large holds internode -DDEATH=1 -DCOUNTS=1 -DROUNDS=1 -DRUNS=0
expect asserts internode -DWITNESS
# Entries are as many as the slots' last messages have parts: one less is too few.
expect asserts internode -DENTRIES=2
expect asserts internode -DSLOTS=2 -DROUNDS=2 -DRUNS=0 -DTOGETHER=1 -DENTRIES=3
for broken in NO_STAGING_WAIT COMBINE_NOT_WAITED WORD_AT_HEAD KEEP_COUNT NO_WORD IMMEDIATE_FIRST TURN_FIRST NEXT_ROUND_EARLY; do
	expect asserts internode -DBREAK_$broken
done
expect asserts internode -DBREAK_ONE_PARITY -DCOUNTS=1 -DRUNS=0
expect hangs internode -DBREAK_SILENCE_FOR_NOTHING
for broken in NO_SECOND_LOOK LOST_FIRST; do
	expect asserts internode -DBREAK_$broken -DDEATH=1 -DRUNS=0
done
for broken in FAILED_UNCOUNTED SILENT_LOSS; do
	expect hangs internode -DBREAK_$broken -DDEATH=1
done

# GPUs: kernels between the halves
expect holds gate
expect asserts gate -DWITNESS
for broken in COUNTED_EARLY NOT_WAITED COUNTED_FIRST MARKS_KEPT MARKED_FIRST LET_FIRST READER_ENDS_FIRST LET_BEFORE_WAIT; do
	expect asserts gate -DBREAK_$broken
done
expect hangs gate -DBREAK_NOTHING_ADDED
expect holds gate -DHIGH
for broken in HEAD_FIRST COUNTED_UNDER_WAY NOT_WAITED COUNTED_FIRST; do
	expect asserts gate -DHIGH -DBREAK_$broken
done
expect hangs gate -DHIGH -DBREAK_NOTHING_ADDED
expect holds gate -DFAR -DROUNDS=1
expect_large holds gate -DFAR -DROUNDS=2
expect asserts gate -DFAR -DROUNDS=2 -DWITNESS
for broken in ALL_AT_HEAD EPOCH_FIRST REPORTED_FIRST RUN_NOT_WAITED COUNTED_EARLY; do
	expect asserts gate -DFAR -DROUNDS=2 -DBREAK_$broken
done
expect hangs gate -DFAR -DROUNDS=2 -DBREAK_NOTHING_ADDED
expect_large holds gate -DFAR -DHOPS -DROUNDS=1
for broken in MARK_FIRST MARK_NOT_WAITED RUN_NOT_WAITED REPORTED_FIRST; do
	expect asserts gate -DFAR -DHOPS -DROUNDS=2 -DBREAK_$broken
done

# GPUs: tiles of a layer's two products
expect holds deal
expect holds deal -DTILES=2
expect_large holds deal -DTILES=5 -DROUNDS=3
expect_large holds deal -DBLOCKS=3
expect asserts deal -DWITNESS
for broken in COUNTED_FIRST NO_LOOK ENDED_FIRST PUT_BACK_BEFORE_END FIRST_PUTS_BACK COUNTS_KEPT LET_BEFORE_WAIT ENDS_FIRST; do
	expect asserts deal -DBREAK_$broken
done

# GPUs: rows that leave before places are known
expect holds early -DROUNDS=2
expect_large holds early
expect_large holds early -DLATE_WORDS
expect_large holds early -DFAIL=1 -DROUNDS=1
expect_large holds early -DFAIL=1 -DROUNDS=2 -DABANDON=0 -DRELEASE=0
expect asserts early -DWITNESS -DROUNDS=2
for broken in NO_ACQUIRE NOT_BEGUN LET_FIRST HEAD_BEFORE_ROW DROPPED_SILENTLY; do
	expect asserts early -DBREAK_$broken -DROUNDS=2
done
expect hangs early -DBREAK_DROPPED_UNSENT -DROUNDS=2
expect asserts early -DBREAK_ONE_PARITY -DROUNDS=2 -DABANDON=0 -DRELEASE=0
for broken in GIVE_BACK_FAILED OWN_PATIENCE; do
	expect asserts early -DBREAK_$broken -DFAIL=1 -DROUNDS=1
done
# Who waits for results of rows that came knows that they were read: only where none come is it the counts that guard the slots.
for broken in NO_COUNTS_WAIT EXCHANGED_FIRST; do
	expect asserts early -DBREAK_$broken -DROUNDS=2
done
expect holds early -DBREAK_NO_COUNTS_WAIT -DRELEASE=0 -DROUNDS=2

# elastic groups: a process joins
expect holds joins
expect_large holds joins -DSTEPS=4
expect_large holds joins -DSTEPS=5 -DDEATHS=0
expect_large holds joins -DDEATHS=2
expect asserts joins -DWITNESS
expect asserts joins -DBREAK_UNREADY
for broken in JUMP_AT_ONCE ONE_JUMP SERVE_AT_ONCE OWN_COUNT; do
	expect hangs joins -DBREAK_$broken
done

# elastic groups on GPUs: what ranks that have gone store late
expect holds device_fence
expect holds device_fence -DDATA_ALONE
expect_large holds device_fence -DDEATHS=2
expect_large holds device_fence -DRANKS=4 -DDATA_ALONE
expect asserts device_fence -DWITNESS
expect hangs device_fence -DBREAK_NO_RENEWAL
expect hangs device_fence -DBREAK_NOT_MAPPED
for broken in NO_RENEWAL DEATH_IS_A_FENCE NO_QUIESCE; do
	expect asserts device_fence -DBREAK_$broken -DDATA_ALONE
done
expect asserts device_fence -DBREAK_PASSED_EARLY -DDEATHS=2 -DRANKS=4 -DDATA_ALONE
expect holds panes
expect holds panes -DDATA_ALONE
expect holds panes -DSAME_PLACES -DDATA_ALONE
expect asserts panes -DWITNESS
for broken in READ_THE_OLD NOT_MAPPED NO_RENEWAL; do
	expect hangs panes -DBREAK_$broken
done
for broken in ONE_PANE NO_RENEWAL PASSED_TO_THE_GONE; do
	expect asserts panes -DBREAK_$broken -DDATA_ALONE
done
expect asserts panes -DBREAK_NO_QUIESCE -DDATA_ALONE -DSAME_PLACES

# One on each core.
TCC=$(command -v tcc)
export CC TCC
xargs -P "$(nproc)" -L 1 sh "$models/run.sh" --check <"$list" | tee "$results"
passed=$(grep -c ': ok$' "$results")
failed=$(($(wc -l <"$list") - passed))
echo "$passed checks passed, $failed failed, $(($(date +%s) - started)) s"
[ $failed -eq 0 ]
