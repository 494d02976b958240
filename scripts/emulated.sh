# SPDX-License-Identifier: Apache-2.0
# What make check runs on emulated GPUs. Sourced by check.sh, whose functions and variables it uses.

# emulated PREFIX DIR SETTINGS...: the GPU kernels on GPUs that are emulated on the CPU: what they compute, their bounds and their protocol. No GPU runs.
emulated() {
	local name=$1 dir=$2
	shift 2
	# They have their GPUs: 77 would be a library that does not load.
	test "$name" 240 sh -c '"$@"; rc=$?; [ $rc -ne 77 ] || exit 1; exit $rc' sh \
		env TERN_CUDA_LIBRARY="$dir/emulated/libtern_cuda.so" TERN_TEST_SHARING=4 TERN_TEST_ROUNDS=4 "$@"
}

on_emulated_gpus() {
	local name script

	emulated emulated/device "$BUILD" TERN_TEST_CASES=6 "$BUILD/tests/device/test_device"
	# Blocks that note slices of plans, as in groups of many ranks, which have more than a warp has lanes.
	emulated emulated/device_sliced "$BUILD" TERN_FORCE_SLICES=1 TERN_TEST_WITHOUT=ht_,scales TERN_TEST_DIVISOR=4 TERN_TEST_SEED=2025 TERN_TEST_CASES=6 "$BUILD/tests/device/test_device"
	emulated emulated/device_either "$BUILD" TERN_FORCE_SLICES=2 TERN_TEST_WITHOUT=ht_,scales,stalled,peer,bad TERN_TEST_DIVISOR=4 TERN_TEST_SEED=2003 TERN_TEST_CASES=4 "$BUILD/tests/device/test_device"
	emulated emulated/device_many "$BUILD" TERN_FORCE_SLICES=1 TERN_EMULATED_SMS=17 TERN_TEST_WITHOUT=_ TERN_TEST_WIDE=33 TERN_TEST_WIDE_TOKENS=40 TERN_TEST_ROUNDS=2 TERN_TEST_CASES=0 "$BUILD/tests/device/test_device"
	emulated emulated/hostile_sliced "$BUILD" TERN_FORCE_SLICES=1 TERN_TEST_WITHOUT=count,position,own TERN_TEST_SEED=900 TERN_TEST_CASES=6 "$BUILD/tests/device/test_hostile"
	emulated emulated/schedules_sliced "$BUILD" TERN_FORCE_SLICES=1 TERN_TEST_SEED=700 TERN_TEST_CASES=8 "$BUILD/tests/emulated/test_schedules"
	test emulated/divide 60 "$BUILD/tests/emulated/test_divide"
	test emulated/fences 60 "$BUILD/tests/emulated/test_fences"
	emulated emulated/lab "$BUILD" TERN_EMULATED_GPUS=1 "$BUILD/emulated/tern-lab-ll" verify 0.001
	# As many blocks as a real GPU takes, rows larger than 8 KB among them.
	emulated emulated/device_wide "$BUILD" TERN_EMULATED_SMS=52 TERN_TEST_SHARING=1 TERN_TEST_RANKS=2 TERN_TEST_ROUNDS=2 TERN_TEST_WITHOUT=_ TERN_TEST_SEED=3012 TERN_TEST_CASES=3 "$BUILD/tests/device/test_device"
	# Two ranks, each of which cuts results as suits its own tokens.
	emulated emulated/device_two_cuts "$BUILD" TERN_EMULATED_SMS=8 TERN_TEST_SHARING=2 TERN_TEST_RANKS=2 TERN_TEST_WITHOUT=_ TERN_TEST_SEED=1 TERN_TEST_CASES=12 "$BUILD/tests/device/test_device"
	emulated emulated/hostile "$BUILD" TERN_TEST_CASES=8 "$BUILD/tests/device/test_hostile"
	emulated emulated/long "$BUILD" TERN_TEST_TOTAL=30 "$BUILD/tests/device/test_long"
	emulated emulated/layer "$BUILD" TERN_TEST_TOTAL=8 TERN_TEST_TOKENS=12 TERN_TEST_HIDDEN=512 "$BUILD/tests/device/test_layer"
	for name in processes handles elastic elastic-ht closing; do : >"$LOGS/emulated-$name"; done # whose turn it is, of the processes of one test
	emulated emulated/processes "$BUILD" TERN_EMULATED_PROCESSES="$LOGS/emulated-processes" TERN_TEST_WAIT_MS=500 "$BUILD/tests/device/test_processes"
	emulated emulated/elastic "$BUILD" TERN_EMULATED_PROCESSES="$LOGS/emulated-elastic" TERN_TEST_WAIT_MS=1500 TERN_TEST_KILLS=1 TERN_TEST_SCENES=3 TERN_TEST_MODE=1 "$BUILD/tests/device/test_elastic"
	emulated emulated/elastic_ht "$BUILD" TERN_EMULATED_PROCESSES="$LOGS/emulated-elastic-ht" TERN_TEST_MODE=2 TERN_TEST_SCENES=4 TERN_TEST_ONLY="*half*" "$BUILD/tests/device/test_elastic"
	emulated emulated/closing "$BUILD" TERN_EMULATED_PROCESSES="$LOGS/emulated-closing" "$BUILD/tests/device/test_closing"
	emulated emulated/processes_by_handles "$BUILD" TERN_FORCE_HANDLES=1 TERN_EMULATED_PROCESSES="$LOGS/emulated-handles" TERN_TEST_WAIT_MS=500 "$BUILD/tests/device/test_processes"
	emulated emulated/schedules "$BUILD" TERN_TEST_CASES=12 "$BUILD/tests/emulated/test_schedules"
	emulated emulated/schedules_without_lines "$BUILD" TERN_EMULATED_LINES=0 TERN_EMULATED_CODE=80 TERN_EMULATED_BLOCK_KIB=99 TERN_TEST_SEED=500 TERN_TEST_CASES=10 "$BUILD/tests/emulated/test_schedules"
	emulated emulated/calls "$BUILD" "$BUILD/tests/device/test_calls"
	emulated emulated/place "$BUILD" "$BUILD/tests/device/test_place"
	emulated emulated/count_routes "$BUILD" "$BUILD/tests/device/test_count_routes"
	emulated emulated/plans "$BUILD" TERN_EMULATED_SMS=3 TERN_TEST_RANKS=3 TERN_TEST_ROUNDS=8 TERN_TEST_CASES=4 "$BUILD/tests/device/test_plans"
	emulated emulated/plans_nodes "$BUILD" TERN_EMULATED_SMS=3 TERN_TEST_NODES=ab TERN_TRANSPORT=shm TERN_TEST_RANKS=3 TERN_TEST_ROUNDS=8 TERN_TEST_SEED=1000 TERN_TEST_CASES=2 "$BUILD/tests/device/test_plans"
	emulated emulated/ahead "$BUILD" TERN_TEST_CASES=5 "$BUILD/tests/emulated/test_ahead"
	emulated emulated/gates "$BUILD" TERN_TEST_ROUNDS=3 TERN_TEST_CASES=15 "$BUILD/tests/emulated/test_gates"
	emulated emulated/gates_nodes "$BUILD" TERN_TEST_NODES=ab TERN_TRANSPORT=ofi TERN_TEST_CASES=6 "$BUILD/tests/emulated/test_gates"
	emulated emulated/gates_nodes_of_2 "$BUILD" TERN_TEST_NODES=aabb TERN_TRANSPORT=copying TERN_TEST_SEED=100 TERN_TEST_CASES=6 "$BUILD/tests/emulated/test_gates"
	for script in generate nodes layer trace mutants; do
		test "emulated/$script.sh" 240 env BUILD="$BUILD" tests/device/$script.sh
	done
	emulated emulated/device_nodes "$BUILD" TERN_TEST_NODES=ab TERN_TRANSPORT=shm TERN_TEST_WITHOUT=stalled TERN_TEST_DIVISOR=8 TERN_TEST_SEED=1001 TERN_TEST_CASES=3 "$BUILD/tests/device/test_device"
	emulated emulated/device_direct "$BUILD" TERN_PROXY_AWAKE=1 TERN_TEST_NODES=aabc TERN_TRANSPORT=copying TERN_TEST_WITHOUT=_ TERN_TEST_SEED=1401 TERN_TEST_CASES=4 "$BUILD/tests/device/test_device"
	emulated emulated/direct "$BUILD" TERN_TEST_ROUNDS=2 "$BUILD/tests/device/test_direct"
	emulated emulated/runs "$BUILD" "$BUILD/tests/device/test_runs"
	emulated emulated/runs_4_ranks "$BUILD" TERN_TEST_ROUNDS=1 TERN_TEST_WITHOUT=rest TERN_TEST_NODES=aabb TERN_TEST_RANKS=4 "$BUILD/tests/device/test_runs"
	emulated emulated/writes "$BUILD" TERN_TEST_ROUNDS=2 "$BUILD/tests/device/test_writes"
	emulated emulated/writes_4_nodes "$BUILD" TERN_TEST_RANKS=8 TERN_TEST_NODES=aabbccdd TERN_TEST_ROUNDS=2 TERN_TEST_WITHOUT=replicas "$BUILD/tests/device/test_writes"
	emulated emulated/device_2_nodes_of_2 "$BUILD" TERN_TEST_RANKS=4 TERN_TEST_NODES=aabb TERN_TRANSPORT=shm TERN_TEST_WITHOUT=_ TERN_TEST_SEED=74 TERN_TEST_CASES=4 "$BUILD/tests/device/test_device"
	emulated emulated/hostile_direct "$BUILD" TERN_TEST_NODES=ab TERN_TRANSPORT=copying TERN_TEST_SEED=1500 TERN_TEST_CASES=4 "$BUILD/tests/device/test_hostile"
	emulated emulated/nvlink_domains "$BUILD" TERN_EMULATED_NVLINK_DOMAIN=2 TERN_TEST_WITHOUT=_ TERN_TEST_REPLICAS=0 TERN_TRANSPORT=shm TERN_TEST_SEED=1200 TERN_TEST_CASES=6 "$BUILD/tests/device/test_device"
	emulated emulated/device_nodes_sliced "$BUILD" TERN_FORCE_SLICES=1 TERN_TEST_NODES=aab TERN_TRANSPORT=shm TERN_TEST_WITHOUT=_ TERN_TEST_SEED=1301 TERN_TEST_CASES=2 "$BUILD/tests/device/test_device"
	emulated emulated/device_nodes_without_lines "$BUILD" TERN_EMULATED_LINES=0 TERN_TEST_WITHOUT=_ TERN_TEST_NODES=aabc TERN_TRANSPORT=shm TERN_TEST_SEED=1100 TERN_TEST_CASES=3 "$BUILD/tests/device/test_device"
}
