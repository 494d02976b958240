#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What `make check` runs over verbs, in the virtual machine: guest.sh PART, in the words of TAP. The parts of one machine share its devices, so they run one after the other.
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
	timeout 170 "$@" || failed=1
}

# Every case of the conformance suite, the faults, and both ways of posting.
part_transport() {
	suite "$BUILD/tests/transport/test_transport" verbs:rxe0
	doctor
	TERN_TEST_DIVISOR=10 TERN_VERBS_POST=classic suite "$BUILD/tests/transport/test_transport" verbs:rxe0 info inline messages order soak
	TERN_TEST_DIVISOR=10 TERN_VERBS_MTU=256 TERN_VERBS_CHAIN=1 suite "$BUILD/tests/transport/test_transport" verbs:rxe0 unaligned order soak
}

# A wire that loses one packet in a hundred and takes its time.
part_lossy() {
	suite "$BUILD/tests/transport/test_transport" verbs:rxe1,rxe2 messages order late_peer replaced bad_key port_down
	for end in veth0 veth1; do
		tc qdisc add dev $end root netem loss 1% delay 1ms || failed=1
	done
	TERN_TEST_DIVISOR=20 suite "$BUILD/tests/transport/test_transport" verbs:rxe1,rxe2 unaligned written_is_landed messages message_order outstanding order late_peer regions soak hammer_processes death
	step "lossy/loss was real" bash -c '[ "$(tc -s qdisc show dev veth0 | sed -n "s/.*dropped \([0-9]*\).*/\1/p" | head -n 1)" -gt 0 ]'
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
	TERN_TEST_NODES=2 TERN_TEST_CASES=2 timeout 100 "$BUILD/tests/exchange/test_random" || return 1
	[ "$(sent_packets)" -gt $((before + 100)) ]
}

# Rank 3 has libfabric alone: the others send to each other over the RDMA device all the same.
mixed_networks() {
	local before

	before=$(sent_packets)
	TERN_FORCE_ENGINE=1 timeout 60 "$BUILD/tern" run -n 4 -- sh -c '[ $TERN_RANK = 3 ] && export TERN_TRANSPORT=ofi; exec "$@"' sh "$BUILD/tern" bench --preset custom --hidden 256 \
		--experts 8 --topk 2 --mode ll,ht --dtype bf16 --tokens 16 --iters 2 --warmup 1 --only-verify --quiet || return 1
	[ "$(sent_packets)" -gt $((before + 100)) ]
}

# Two devices a rank, and rows go over both.
two_devices() {
	local before1 before2

	before1=$(cat /sys/class/infiniband/rxe1/ports/1/hw_counters/sent_pkts)
	before2=$(cat /sys/class/infiniband/rxe2/ports/1/hw_counters/sent_pkts)
	TERN_TRANSPORT=verbs@rxe1,rxe2 timeout 60 "$BUILD/tern" bench --ranks 2 --preset custom --hidden 256 --experts 8 --topk 2 --mode ll,ht --dtype bf16 \
		--tokens 16 --iters 2 --warmup 1 --only-verify --quiet || return 1
	[ "$(cat /sys/class/infiniband/rxe1/ports/1/hw_counters/sent_pkts)" -gt $((before1 + 20)) ] &&
		[ "$(cat /sys/class/infiniband/rxe2/ports/1/hw_counters/sent_pkts)" -gt $((before2 + 20)) ]
}

# What is wrong is found by trying, and what works is used.
doctor() {
	step "doctor" bash -c "'$BUILD/tern' doctor | tee /dev/stderr | grep -q '^transport verbs  *works: rxe'"
	ip link set veth0 down
	step "doctor/port-down" bash -c "'$BUILD/tern' doctor --quick | tee /dev/stderr | grep -q '^RDMA port *rxe1:1.*cannot be used: port 1 is down'"
	TERN_VERBS_GID_INDEX=77 step "doctor/no-gid" bash -c "'$BUILD/tern' doctor | tee /dev/stderr | grep -A1 '^transport verbs *does not work: .*no GID' | grep -q 'to do: give'"
}

# Dispatch and combine, all of whose rows go through the device.
part_exchange() {
	export TERN_FORCE_ENGINE=1 TERN_TRANSPORT=verbs:rxe0

	for ranks in 2 4; do
		step "exchange/$ranks-ranks" timeout 100 "$BUILD/tern" bench --ranks $ranks --preset custom --hidden 256 --experts 8 --topk 2 --mode ll,ht \
			--dtype fp8,bf16 --tokens 1,16 --iters 2 --warmup 1 --only-verify --quiet
	done
	step "exchange/two-devices" two_devices
	step "signal" timeout 100 "$BUILD/tern" bench signal --transport verbs:rxe0 --peers 2 --concurrency 4 --bytes 4K --iters 3 --policy all
	TERN_TEST_CASES=${RANDOM_CASES:-6} suite "$BUILD/tests/exchange/test_random"
	unset TERN_FORCE_ENGINE TERN_TRANSPORT
	step "group-chooses-verbs" chooses_verbs
	step "mixed-networks" mixed_networks
	TERN_FORCE_ENGINE=1 TERN_TRANSPORT=verbs step "generate" timeout 120 bash -c "'$BUILD/tern' run -n 2 -- '$BUILD/generate' -n 1 | tee /dev/stderr | grep -q 'identical to 1 rank *yes'"
}

# The same with a sanitizer in it, and less of it. The kernel's stores are not seen by it; everything on this side is.
part_sanitized() {
	TERN_TEST_DIVISOR=20 suite "$BUILD/tests/transport/test_transport" verbs:rxe0 unaligned immediates self messages inline outstanding full_queues soak \
		refusals bad_key regions replaced reopened hammer_threads death \
		flushed victim retry_exceeded rnr_exhausted no_overrun unanswered forged renewed storm relaxed
}

"part_$1"
exit $failed
