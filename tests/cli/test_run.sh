#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `tern run` promises: exit codes, labels, signals, dead ranks, nothing left behind. BUILD=dir tests/cli/test_run.sh
BUILD=${BUILD:-build}
WITHIN=${WITHIN:-$BUILD/tests/within}
tern=$BUILD/tern
rank=$BUILD/tests/rank
here=$(dirname "$0")
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
failures=0

if [ ! -x "$rank" ]; then
	mkdir -p "$BUILD/tests"
	# shellcheck disable=SC2086
	${CC:-cc} $CFLAGS -I"$here/../../include" "$here/rank.c" "$BUILD/libtern.a" -o "$rank" $LDFLAGS -lpthread -ldl -lm || exit 1
fi

bad() {
	failures=$((failures + 1))
	echo "FAILED: $1"
	sed 's/^/    out: /' "$tmp/out"
	sed 's/^/    err: /' "$tmp/err"
}

# try CODE NAME command...: the command's output is kept in $tmp/out and $tmp/err
try() {
	code=$1 name=$2
	shift 2
	"$WITHIN" 60 "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
	rc=$?
	[ $rc = "$code" ] || bad "$name: exit code $rc, expected $code"
}

has() { grep -q -- "$2" "$tmp/$1" || bad "$name: \"$2\" is not in std$1"; }
lines() { [ "$(wc -l <"$tmp/$1")" = "$2" ] || bad "$name: std$1 has $(wc -l <"$tmp/$1") lines, expected $2"; }
gone() { # no process whose arguments contain $1, within 5 s; grep's own have brackets
	pattern="[${1%"${1#?}"}]${1#?}"
	for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25; do
		cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' | grep -q -- "$pattern" || return 0
		sleep 0.2
	done
	bad "$name: a process with \"$1\" is left behind"
}

# exit codes
try 0 "all well" "$tern" run -n 3 true
try 7 "first failure's code" "$tern" run -n 3 --grace 0.1 -- sh -c 'exit $((TERN_RANK == 1 ? 7 : 0))'
has err "rank 1 ended (exit code 7)"
try 127 "no such program" "$tern" run -n 2 ./no-such-program
has err "no-such-program: No such file"
try 126 "not a program" "$tern" run -n 2 /
try 124 "time limit" "$tern" run -n 2 --timeout 0.3 sleep 1234.$$
has err "0.3 s are over; ending rank 0, 1"
gone "sleep 1234.$$"

# environment
try 0 "nodes by name" "$tern" run -n 4 --nodes 2 --by-name -- sh -c 'echo "$TERN_RANK on $TERN_NODE"'
has out "^1 on 0$"
has out "^2 on 1$"
try 0 "nodes" "$tern" run -n 3 --nodes 3 -- sh -c 'echo "$TERN_RANK on $TERN_NODE"' # in namespaces, or said why not
has out "^2 on 2$"
# Rows of 2 nodes over 2 links, and what each link has carried.
if "$tern" run -n 2 --nodes 2 -e 'TERN_TRANSPORT=ofi:tcp;ofi_rxm' -- "$tern" bench --tokens 1 --only-verify >"$tmp/out" 2>"$tmp/err" && ! [ -s "$tmp/err" ]; then
	try 0 "two links" "$tern" run -n 4 --nodes 2 --links 2 -e 'TERN_TRANSPORT=ofi:tcp;ofi_rxm@eth0,eth1' -- sh -c \
		"'$tern' bench --tokens 128 --mode all --only-verify --iters 2 || exit 1
		[ \$TERN_RANK = 1 ] || exit 0
		sed -n 's/^ *\\(eth[01]\\): *\\([0-9]*\\)[0-9]\\{6\\} .*/\\1 received \\2 MB/p' /proc/self/net/dev"
	has out "^eth0 received [0-9][0-9]* MB"
	has out "^eth1 received [0-9][0-9]* MB"
	has out "4 rounds verified, 0 wrong"
	try 1 "a device that is not there" "$tern" run -n 2 --nodes 2 -e 'TERN_TRANSPORT=ofi:tcp;ofi_rxm@eth0,eth7' -e TERN_FORCE_ENGINE=1 -- "$tern" bench --tokens 1 --only-verify
	has err "device eth7"
	# Rank 2 has libfabric alone, the others shared memory between them.
	try 0 "networks of ranks" "$tern" run -n 4 -e TERN_FORCE_ENGINE=1 -- sh -c \
		"export TERN_TRANSPORT=shm+ofi; [ \$TERN_RANK = 2 ] && TERN_TRANSPORT=ofi; exec '$tern' bench --tokens 16 --mode all --only-verify --iters 2"
	has out "4 rounds verified, 0 wrong"
	has out "from rank 0: ranks 1, 3: shm, which both offer; rank 2: ofi:tcp;ofi_rxm, as shm is not offered there; "
	try 1 "no network in common" "$tern" run -n 3 -e TERN_FORCE_ENGINE=1 -- sh -c \
		"export TERN_TRANSPORT=shm; [ \$TERN_RANK = 2 ] && TERN_TRANSPORT=ofi; exec '$tern' bench --tokens 1 --only-verify"
	has err "nothing connects ranks 0 and 2: rank 0 offers shm (reaches machine .*); rank 2 offers ofi:tcp;ofi_rxm"
	try 1 "raw writes over several networks" "$tern" run -n 3 -e TERN_FORCE_ENGINE=1 -- sh -c \
		"export TERN_TRANSPORT=shm+ofi; [ \$TERN_RANK = 2 ] && TERN_TRANSPORT=ofi; exec '$tern' bench --tokens 1 --against libfabric"
	has err "the engine reaches its peers over several networks: "
else
	echo "skip: two links: $(cat "$tmp/err")"
fi
try 2 "too many nodes" "$tern" run -n 2 --nodes 99 true

try 0 "variables" "$tern" run -n 2 --wait 1234 -e FOO=bar -e B=a=b -- sh -c 'echo "$TERN_RANK/$TERN_NR_RANKS $TERN_WAIT_MS $FOO $B"'
has out "^0/2 1234 bar a=b$"
has out "^1/2 1234 bar a=b$"
try 0 "cores" "$tern" run -n 2 --bind sh -c 'grep Cpus_allowed_list /proc/self/status'
lines out 2
echo typed >"$tmp/in"
"$WITHIN" 20 "$tern" run -n 2 --label cat <"$tmp/in" >"$tmp/out" 2>"$tmp/err"
name="only rank 0 reads stdin"
has out "^\[0\] typed$"
lines out 1

# labels
try 0 "labels" "$tern" run -n 2 --label -- sh -c 'echo one; echo two >&2; printf "no newline"'
has out "^\[0\] one$"
has out "^\[1\] no newline$"
has err "^\[1\] two$"
lines out 4
lines err 2
try 0 "long lines" "$tern" run -n 2 -l -- sh -c 'head -c 300000 /dev/zero | tr "\0" x; echo'
lines out 2
[ "$(wc -c <"$tmp/out")" = 600010 ] || bad "long lines: $(wc -c <"$tmp/out") bytes"

# gatherings
for n in 1 2 5 16; do
	try 0 "$n ranks gather" "$tern" run -n $n "$rank" gather 200
	has out "^$n ranks$"
done
try 0 "twice in one job" "$tern" run -n 3 -- sh -c "$rank gather 3 && $rank gather 5"
lines out 2
try 3 "a rank that does not come" "$tern" run -n 3 "$rank" miss 1
has err "rank 1 ended (exit code 0)"
try 137 "a rank that is killed" "$tern" run -n 3 "$rank" kill 2
has err "tern run: rank 2 died (signal 9, Killed)"
has err "^rank 2 died (signal 9, Killed)$"
try 3 "a rank that is slow" "$tern" run -n 2 --wait 100 -- sh -c "[ \$TERN_RANK = 0 ] || sleep 1; exec $rank gather 1"
has err "rank 0: gathering 1 was not answered within 100 ms"
has err "rank 0 ended (exit code 3)"

# a failure ends the others, unless they may keep going
try 5 "others are ended" "$tern" run -n 3 --grace 0.2 -- sh -c '[ $TERN_RANK != 1 ] || exit 5; exec sleep 2345.'$$
has err "ending rank 0, 2"
gone "sleep 2345.$$"
try 5 "others keep going" "$tern" run -n 3 --grace 0 --keep-going -- sh -c '[ $TERN_RANK != 1 ] || exit 5; sleep 0.5; echo still here'
lines out 2
try 5 "deaf to SIGTERM" "$tern" run -n 2 --grace 0.1 -- sh -c '[ $TERN_RANK = 0 ] || exit 5; trap "" TERM; while :; do sleep 0.1; done'
try 137 "grandchildren" "$tern" run -n 2 --grace 0.1 -- sh -c "sleep 3456.$$ & kill -9 \$\$"
gone "sleep 3456.$$"

# signals to the launcher
interrupt() { # signal, expected code, ranks' script
	: >"$tmp/out"
	# sh lets its background jobs ignore SIGINT
	env --default-signal=INT "$tern" run -n 2 --grace 2 -- sh -c "$3" >"$tmp/out" 2>"$tmp/err" &
	pid=$!
	until [ "$(grep -c ready "$tmp/out")" = 2 ]; do sleep 0.05; done
	kill -"$1" $pid
	wait $pid 2>/dev/null
	rc=$?
	[ $rc = "$2" ] || bad "$name: exit code $rc, expected $2"
}
name="SIGTERM is passed on"
interrupt TERM 143 "echo ready; exec sleep 4567.$$"
gone "sleep 4567.$$"
name="ranks may end well"
interrupt TERM 143 'trap "echo bye; exit 0" TERM; echo ready; while :; do sleep 0.1; done'
has out bye
name="SIGINT is passed on"
interrupt INT 130 'trap "echo bye; exit 0" INT; echo ready; while :; do sleep 0.1; done'
has out bye
name="an ignored signal stays ignored"
: >"$tmp/out"
(trap "" HUP; exec "$tern" run -n 1 -- sh -c 'echo ready; sleep 0.5; echo bye') >"$tmp/out" 2>"$tmp/err" &
pid=$!
until grep -q ready "$tmp/out"; do sleep 0.05; done
kill -HUP $pid
wait $pid || bad "$name: exit code $?"
has out bye
try 5 "SIGCHLD ignored by the caller" sh -c "trap '' CHLD; exec $tern run -n 2 sh -c 'exit 5'"
# Tools put threads into a process, and signals go to any thread that takes them.
name="another thread in the launcher"
try 0 "$name" env LD_PRELOAD="$PWD/$BUILD/tests/thread.so" sh -c "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do \"$WITHIN\" 20 $tern run -n 3 true || exit; done"
LD_PRELOAD=$PWD/$BUILD/tests/thread.so
export LD_PRELOAD
interrupt TERM 143 'trap "echo bye; exit 0" TERM; echo ready; while :; do sleep 0.1; done'
unset LD_PRELOAD
has out bye
name="nothing outlives a killed launcher"
interrupt KILL 137 "echo ready; exec sleep 5678.$$"
gone "sleep 5678.$$"

# bad flags
for flags in "-n 0" "-n x" "-n 1.5" "-n" "--bogus" "-n 2 --env FOO" "-n 2 --timeout soon" "-n 2 --wait -3" "-n 99999" "-n 2" "" "true"; do
	# shellcheck disable=SC2086
	try 2 "tern run $flags" "$tern" run $flags
	has err "tern run"
done
try 0 "help" "$tern" run --help
has out "Usage: tern run"
try 2 "no such command" "$tern" frobnicate
has err '"frobnicate"'
try 0 "version" "$tern" --version
has out "^tern [0-9]*\.[0-9]*\.[0-9]*$"
try 0 "help of all" "$tern" help
has out "run "
try 0 "info" "$tern" info
has out "^memfd *yes"
try 0 "info --json" "$tern" info --json
has out '"version": "'
try 2 "info with a bad flag" "$tern" info --frob

[ $failures = 0 ] && echo "test_run.sh: all well"
[ $failures = 0 ]
