# SPDX-License-Identifier: Apache-2.0
# Tests. `make tests` builds what runs as it is, `make fuzzers` what libFuzzer drives; scripts/check.sh runs them.
# A test sees everything that has no main(): the library's inside, the test kit, the command, the model.
INSIDE_SRC := $(LIB_SRC) $(TESTKIT_SRC) $(BENCH_SRC) $(SIM_SRC) $(SOAK_SRC) $(filter-out %/main.c,$(CLI_SRC) $(GEN_SRC)) \
	      $(filter-out tests/exchange/test_% tests/faults/test_% tests/device/test_%,\
	      tests/late.c tests/unit/boot_ranks.c $(wildcard tests/exchange/*.c tests/faults/*.c tests/engine/*.c tests/device/*.c))
TRANSPORT_SRC := $(filter-out tests/transport/cases_verbs%,$(wildcard tests/transport/*.c)) \
	      $(if $(VERBS),$(filter-out %_none.c,$(wildcard tests/transport/cases_verbs*.c)),tests/transport/cases_verbs_none.c)
INSIDE     := $(BUILD)/tests/libinside.a
TEST_SRC   := $(filter-out $(if $(VERBS),,%/test_device_memory.c %/test_device_buffers.c),$(wildcard tests/unit/test_*.c tests/exchange/test_*.c tests/faults/test_*.c tests/device/test_*.c))
TESTS      := $(patsubst tests/%.c,$(BUILD)/tests/%,$(TEST_SRC))
FUZZERS    := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/fuzz/fuzz_*.c))

# What only drives the library is compiled soonest: with sanitizers, the command too. Fuzzers look into neither.
DRIVER     := $(if $(SANITIZE),-O0,-O1) $(if $(findstring fuzzer,$(SANITIZE)),-fno-sanitize=fuzzer-no-link)
$(BUILD)/obj/tests/%.o: CFLAGS += -I. $(DRIVER)
$(BUILD)/obj/tests/fuzz/%.o: CFLAGS += $(if $(findstring fuzzer,$(SANITIZE)),-fsanitize=fuzzer-no-link)
ifneq ($(SANITIZE),)
$(BUILD)/obj/cli/%.o $(BUILD)/obj/bench/%.o $(BUILD)/obj/soak/%.o: CFLAGS += $(DRIVER)
# Nor is what runs once for a group or an exchange worth a compiler's time.
$(foreach d,src/group src/weights src/balance src/gpu/host src/transport examples,$(BUILD)/obj/$d/%.o): CFLAGS += -O0
endif

$(INSIDE): $(call obj,$(INSIDE_SRC))
	@mkdir -p $(@D)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(TESTS): $(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(INSIDE)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) $^ -o $@ -lcmocka $(LDLIBS)

$(FUZZERS): $(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(INSIDE)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) -fsanitize=fuzzer $^ -o $@ $(LDLIBS)

# One suite for every network; it needs no framework, as each case is a process.
$(BUILD)/tests/transport/test_transport: $(call obj,$(TRANSPORT_SRC)) $(INSIDE)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) $^ -o $@ $(LDLIBS)

# With marks.
$(BUILD)/obj/tests/unit/test_trace.o: CFLAGS += -DTERN_TRACE
$(BUILD)/tests/unit/test_trace: $(patsubst %.c,$(BUILD)/marked/%.o,$(wildcard testkit/trace/*.c))

# Benchmarks of the verbs transport, for the virtual machine.
$(BUILD)/tests/vm/rate: $(BUILD)/obj/tests/vm/rate.o $(INSIDE)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) $^ -o $@ $(LDLIBS)

# The kernels as each instruction set has them; the loader picks one of these.
KERNEL_VERSIONS := $(if $(filter x86_64,$(shell uname -m)),x86-64 x86-64-v3 x86-64-v4)
LANES_x86-64    := 4
LANES_x86-64-v3 := 8
LANES_x86-64-v4 := 16
KERNEL_TESTS    := $(addprefix $(BUILD)/tests/unit/test_kernels_,$(KERNEL_VERSIONS))
$(BUILD)/obj/kernels/%/quantise.o: src/exchange/cpu/kernels/quantise.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -DCPU_CLONES= -march=$* -c $< -o $@
$(BUILD)/obj/kernels/%/reduce.o: src/exchange/cpu/kernels/reduce.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) -DMOST_LANES=$(LANES_$*) -march=$* -c $< -o $@
$(KERNEL_TESTS): $(BUILD)/tests/unit/test_kernels_%: $(BUILD)/obj/tests/unit/test_kernels.o $(BUILD)/obj/kernels/%/quantise.o \
	$(BUILD)/obj/kernels/%/reduce.o $(INSIDE)
	@mkdir -p $(@D)
	@echo "  LINK $@"
	$(Q)$(CC) $(LDFLAGS) $^ -o $@ -lcmocka $(LDLIBS)

# Needs no library: links against what an installed tern is.
$(BUILD)/tests/rank: $(BUILD)/obj/tests/cli/rank.o $(BUILD)/libtern.a
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) $^ -o $@ $(LDLIBS)

# What bounds a test. Not sanitized: it watches those that are.
$(BUILD)/tests/within: tests/within.c
	@mkdir -p $(@D)
	@echo '  CC   $@'
	$(Q)$(CC) -O2 -Wall -Wextra -D_GNU_SOURCE $< -o $@

$(BUILD)/tests/vm/tsc: tests/vm/tsc.c
	@mkdir -p $(@D)
	@echo '  CC   $@'
	$(Q)$(CC) -O2 -Wall -Wextra -D_GNU_SOURCE $< -o $@

# Put into a program by the loader, beside what it has.
$(BUILD)/tests/thread.so: $(BUILD)/obj/tests/cli/thread.o
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) -shared $(LDFLAGS) $^ -o $@ -lpthread

# Drivers that a test loads in CUDA's place; the older has no dma-buf.
DRIVERS := $(BUILD)/tests/driver/new/libcuda.so.1 $(BUILD)/tests/driver/old/libcuda.so.1
$(DRIVERS): tests/device/driver/libcuda.c tests/device/driver/libcuda.h
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) $(filter-out -MMD -MP,$(CFLAGS)) -I. $(if $(findstring /old/,$@),-DOLD) -fvisibility=default -shared -fPIC -Wl,-soname,$(@F) $< -o $@
$(BUILD)/tests/unit/test_device_memory $(BUILD)/tests/unit/test_device_buffers $(BUILD)/tests/transport/test_transport: | $(DRIVERS)

tests: $(TESTS) $(DRIVERS) traced $(KERNEL_TESTS) emulated $(BUILD)/tests/transport/test_transport $(BUILD)/tests/vm/rate $(BUILD)/tests/rank $(BUILD)/tests/thread.so $(BUILD)/tests/within
fuzzers: $(FUZZERS)

check:
	@BUILD=$(BUILD) scripts/check.sh

test:
	@BUILD=$(BUILD) STAGES=quick scripts/check.sh

check-torch:
	@BUILD=$(BUILD) STAGES=torch scripts/check.sh

soak:
	@BUILD=$(BUILD) SOAK_SECONDS=$(or $(SECONDS),600) SEED=$(SEED) scripts/soak.sh

.PHONY: tests fuzzers check check-torch test soak
.SECONDARY:
