# SPDX-License-Identifier: Apache-2.0
# Tests. `make tests` builds what runs as it is, `make fuzzers` what libFuzzer drives; scripts/check.sh runs them.
# A test sees everything that has no main(): the library's inside, the benchmark's reference, the command, the model.
INSIDE_SRC := $(LIB_SRC) $(BENCH_SRC) $(filter-out %/main.c,$(CLI_SRC) $(GEN_SRC)) $(filter-out tests/exchange/test_%,$(wildcard tests/exchange/*.c))
INSIDE     := $(BUILD)/tests/libinside.a
TEST_SRC   := $(wildcard tests/unit/test_*.c tests/exchange/test_*.c tests/faults/test_*.c)
TESTS      := $(patsubst tests/%.c,$(BUILD)/tests/%,$(TEST_SRC))
FUZZERS    := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/fuzz/fuzz_*.c))

$(BUILD)/obj/tests/%.o: CFLAGS += -I.

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

# Needs no library: links against what an installed tern is.
$(BUILD)/tests/rank: $(BUILD)/obj/tests/cli/rank.o $(BUILD)/libtern.a
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) $^ -o $@ $(LDLIBS)

tests: $(TESTS) $(BUILD)/tests/rank
fuzzers: $(FUZZERS)

check:
	@BUILD=$(BUILD) scripts/check.sh

soak:
	@BUILD=$(BUILD) SOAK_SECONDS=$(or $(SECONDS),600) SEED=$(SEED) scripts/soak.sh

.PHONY: tests fuzzers check soak
.SECONDARY:
