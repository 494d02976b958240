#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What `make check` runs over verbs, in the virtual machine: guest.sh PART [ARGUMENTS], in the words of TAP. The parts of one machine share its devices, so they run one after the other.
set -u
BUILD=${BUILD:-build}
failed=0

# step NAME COMMAND...: one test of a program that has no TAP of its own.
step() {
	local name=$1 from=$SECONDS

	shift
	if "$@" >/tmp/step 2>&1; then
		echo "ok - verbs/$name # $((SECONDS - from)) s"
	else
		failed=1
		echo "not ok - verbs/$name"
		tail -n 40 /tmp/step | sed 's/^/# /'
	fi
}

# suite COMMAND...: one that has.
suite() {
	CMOCKA_MESSAGE_OUTPUT=TAP "$@" || failed=1
}

# bench RANKS TRANSPORT [ARGUMENTS]: verified rounds of both modes; every row goes through a device. TRANSPORT is evaluated by each rank, as its number may be in it.
bench() {
	local ranks=$1 transport=$2

	shift 2
	TERN_FORCE_ENGINE=1 "$BUILD/tern" run -n "$ranks" -- sh -c "TERN_TRANSPORT=$transport exec \"\$@\"" sh "$BUILD/tern" bench --preset custom --hidden 256 \
		--experts 8 --topk 2 --mode ll,ht --tokens 1,16 --iters 2 --warmup 1 --only-verify --quiet "$@"
}
end_of_wire='verbs@rxe$((1 + TERN_RANK % 2))'
both_ends='verbs@rxe$((1 + TERN_RANK % 2)),rxe$((2 - TERN_RANK % 2))' # a NIC talks to the others' of its number, so both go over the wire

# Every case of the conformance suite, the faults, and both ways of posting.
part_transport() {
	TERN_TEST_DIVISOR=12 suite "$BUILD/tests/transport/test_transport" verbs:rxe0
	doctor
	TERN_TEST_DIVISOR=20 TERN_VERBS_POST=classic suite "$BUILD/tests/transport/test_transport" verbs:rxe0 info inline messages order soak
	TERN_TEST_DIVISOR=20 TERN_VERBS_MTU=256 TERN_VERBS_CHAIN=1 suite "$BUILD/tests/transport/test_transport" verbs:rxe0 unaligned order soak
}

lose() {
	for end in veth0 veth1; do
		tc qdisc add dev $end root netem loss 1% delay 1ms || failed=1
	done
}

# A wire that loses one packet in a hundred and takes its time.
part_lossy() {
	local before

	suite "$BUILD/tests/transport/test_transport" verbs:rxe1,rxe2 order port_down wire_later
	lose
	TERN_TEST_DIVISOR=20 suite "$BUILD/tests/transport/test_transport" verbs:rxe1,rxe2 message_order order soak death
	step "lossy/loss-was-real" [ "$(dropped)" -gt 0 ]
	before=$(dropped)
	step "lossy/exchange/two-devices" exchange_with_losses "$before"
}

# A round is a few packets: again until one was lost.
exchange_with_losses() {
	local times

	for times in 1 2 3 4 5 6 7 8; do
		bench 2 "$both_ends" --dtype bf16 --iters $((4 * times)) || return 1
		[ "$(dropped)" -le "$1" ] || return 0
	done
	echo "nothing was lost"
	return 1
}

dropped() {
	tc -s qdisc show dev veth0 | sed -n 's/.*dropped \([0-9]*\).*/\1/p' | head -n 1
}

sent_packets() {
	cat /sys/class/infiniband/rxe*/ports/1/hw_counters/sent_pkts | awk '{n += $1} END {print n}'
}

# With no setting, ranks of two nodes go over the RDMA device, and say so.
chooses_verbs() {
	local before

	before=$(sent_packets)
	"$BUILD/tern" info | grep -q '^between_nodes .*verbs on rxe' || return 1
	"$BUILD/tests/unit/test_group" || return 1
	TERN_TEST_NODES=2 TERN_TEST_CASES=2 "$BUILD/tests/exchange/test_random" || return 1
	[ "$(sent_packets)" -gt $((before + 100)) ]
}

# Rank 3 has libfabric alone: the others send to each other over the RDMA device all the same.
mixed_networks() {
	local before

	before=$(sent_packets)
	TERN_FORCE_ENGINE=1 "$BUILD/tern" run -n 4 -- sh -c '[ $TERN_RANK = 3 ] && export TERN_TRANSPORT=ofi; exec "$@"' sh "$BUILD/tern" bench --preset custom --hidden 256 \
		--experts 8 --topk 2 --mode ll,ht --dtype bf16 --tokens 16 --iters 2 --warmup 1 --only-verify --quiet || return 1
	[ "$(sent_packets)" -gt $((before + 100)) ]
}

sent_by() {
	cat "/sys/class/infiniband/$1/ports/1/hw_counters/sent_pkts"
}

# Two devices a rank, and rows go over both.
two_devices() {
	local before1 before2

	before1=$(sent_by rxe1) before2=$(sent_by rxe2)
	bench 2 "$both_ends" --dtype bf16 || return 1
	[ "$(sent_by rxe1)" -gt $((before1 + 20)) ] && [ "$(sent_by rxe2)" -gt $((before2 + 20)) ]
}

# What is wrong is found by trying, and what works is used.
doctor() {
	step "doctor" bash -c "'$BUILD/tern' doctor | tee /dev/stderr | grep -q '^transport verbs  *works: rxe'"
	ip link set veth0 down
	step "doctor/port-down" bash -c "'$BUILD/tern' doctor --quick | tee /dev/stderr | grep -q '^RDMA port *rxe1:1.*cannot be used: port 1 is down'"
	TERN_VERBS_GID_INDEX=77 step "doctor/no-gid" bash -c "'$BUILD/tern' doctor | tee /dev/stderr | grep -A1 '^transport verbs *does not work: .*no GID' | grep -q 'to do: give'"
	ip link set veth0 up
	scripts/vm/wire.sh up || failed=1
}

texts() {
	sed "/^---/,/^ranks /!d; s/, rank [0-9]*//; /^ranks /d" "$1"
}

# The demo: the same texts on 1, 2 and 4 ranks, and on 4 the logits too, every bit.
same_texts() {
	local ranks check

	for ranks in 1 2 4; do
		check=$([ $ranks -eq 4 ] || echo --no-check)
		# shellcheck disable=SC2086
		"$BUILD/tern" run -n $ranks -- "$BUILD/generate" -p "And God " -p "Bird, n. " -p "The king " -p "Sea, n. A " -n 8 --no-live $check >/tmp/demo$ranks || return 1
		texts /tmp/demo$ranks >/tmp/texts$ranks
		md5sum /tmp/texts$ranks
		cmp /tmp/texts1 /tmp/texts$ranks || return 1
	done
	cat /tmp/demo4
	[ "$(wc -c </tmp/texts4)" -gt 100 ] && grep -q 'identical to 1 rank *yes' /tmp/demo4
}

# Dispatch and combine, all of whose rows go through the device.
part_exchange() {
	step "exchange/2-ranks" bench 2 verbs:rxe0 --dtype fp8,bf16 --tokens 16
	TERN_FORCE_ENGINE=1 TERN_TRANSPORT=verbs:rxe0 TERN_TEST_CASES=${RANDOM_CASES:-2} suite "$BUILD/tests/exchange/test_random"
	suite "$BUILD/tests/unit/test_engine_threads" 'over_verbs*'
	step "group-chooses-verbs" chooses_verbs
}

# Ranks that are killed in every phase of one mode, and wires that are pulled in every phase of the other.
part_faults() {
	TERN_FORCE_ENGINE=1 TERN_TRANSPORT=verbs:rxe0 TERN_TEST_DIVISOR=48 suite "$BUILD/tests/faults/test_faults" killed_in_each_phase_ht
	suite "$BUILD/tests/faults/test_engine" 'over_verbs*'
	suite "$BUILD/tests/faults/test_wire" low_latency
}

# The same with a sanitizer in it, and less of it. The kernel's stores are not seen by it; everything on this side is.
part_sanitized() {
	TERN_TEST_DIVISOR=20 suite "$BUILD/tests/transport/test_transport" verbs:rxe0 unaligned immediates self messages inline outstanding full_queues soak \
		refusals bad_key regions replaced reopened hammer_threads death \
		flushed victim retry_exceeded rnr_exhausted no_overrun unsignalled device_memory unanswered forged stale_greeting renewed storm relaxed
	suite "$BUILD/tests/transport/test_transport" verbs:rxe1,rxe2 port_down wire_later
	TERN_TEST_DIVISOR=10 suite "$BUILD/tests/unit/test_engine_threads" over_verbs
	export TERN_FORCE_ENGINE=1 TERN_TRANSPORT=verbs:rxe0
	suite "$BUILD/tests/exchange/test_shapes" two_ranks
	suite "$BUILD/tests/exchange/test_shapes" four_ranks
}

# All that make check runs, in one machine, as its start costs as much as a part. What changes the wire is last.
part_check() {
	part_transport
	part_exchange
	part_faults
	part_lossy
}

# What takes longer: soak SEED SECONDS.
part_soak() {
	local seed=$1 seconds=$2

	step "signal" "$BUILD/tern" bench signal --transport verbs:rxe0 --peers 2 --concurrency 4 --bytes 4K --iters 3 --policy all
	step "mixed-networks" mixed_networks
	# That it runs; how fast is for quiet hours.
	step "rate" bash -c "tests/vm/rate.sh 1 8 | tee /dev/stderr | awk '/^write/ && \$NF > 0 {n++} END {exit n != 2}'"
	suite "$BUILD/tests/faults/test_wire" high_throughput
	export TERN_FORCE_ENGINE=1
	step "exchange/two-devices" two_devices
	step "exchange/4-ranks" bench 4 verbs:rxe0 --dtype fp8,bf16
	TERN_TRANSPORT=verbs step "generate" same_texts
	TERN_TRANSPORT=verbs:rxe0 step soak/faults "$BUILD/tests/faults/test_faults"
	TERN_TRANSPORT=verbs:rxe0 step soak/shapes "$BUILD/tests/exchange/test_shapes"
	TSAN_OPTIONS=halt_on_error=1 TERN_TRANSPORT=verbs:rxe0 step soak/thread "$BUILD/thread/tests/exchange/test_shapes" '*_ranks'
	suite "$BUILD/tests/transport/test_transport" verbs:rxe0 sizes soak
	suite "$BUILD/tests/transport/test_transport" verbs:rxe1,rxe2 messages late_peer replaced bad_key
	lose
	TERN_TEST_DIVISOR=20 suite "$BUILD/tests/transport/test_transport" verbs:rxe1,rxe2 unaligned written_is_landed messages outstanding late_peer regions hammer_processes
	step soak/lossy-2-ranks bench 2 "$end_of_wire" --dtype fp8,bf16
	step soak/lossy-4-ranks bench 4 "$end_of_wire" --dtype fp8 --tokens 16
	TERN_TEST_TRANSPORTS="verbs@rxe1 verbs@rxe2" TERN_TEST_SEED=$seed TERN_TEST_SECONDS=$seconds step soak/random "$BUILD/tests/exchange/test_random"
}

"part_$1" "${@:2}"
exit $failed
