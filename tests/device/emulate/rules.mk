# SPDX-License-Identifier: Apache-2.0
# libtern_cuda.so for emulated GPUs: the backend and the kernels as they are, compiled for the CPU; CUDA's runtime is tests/device/emulate/. Needs g++, no nvcc.
CXX          ?= g++
EMULATE      := tests/device/emulate
EMULATED_SRC := $(wildcard src/gpu/cuda/*.c bench/nccl/*.c) $(filter-out %/seeded.c $(EMULATE)/test_%.c,$(wildcard $(EMULATE)/*.c)) src/exchange/layout.c
EMULATED_CU  := $(CUDA_CU) $(EMULATE)/nccl.cu
EMULATED_OBJ := $(patsubst %,$(BUILD)/emulated/obj/%.o,$(EMULATED_SRC) $(EMULATED_CU))
# C++ has neither unused kernels nor unrolling by pragma; clang++ says so of each loop. What it checks of calls through
# pointers needs a runtime of C++, which programs in C that load this do not have. No fuzzer looks at kernels. A lane may
# reckon an address from no pointer, where it does not load: that is left to the check of what is loaded.
# What lanes do is little beside their changing places: optimising it takes longer than it saves.
EMULATED_CXX  = $(filter-out -std=gnu11 -Wstrict-prototypes,$(CFLAGS)) -O1 -g1 -fno-exceptions -std=gnu++17 -Wno-unknown-pragmas -Wno-sign-compare -Wno-unused-function -Wno-unused-parameter -I. \
		 $(if $(findstring clang,$(CXX)),-Wno-pass-failed $(if $(findstring undefined,$(SANITIZE)),-fno-sanitize=function$(comma)vptr$(comma)pointer-overflow) \
		 $(if $(findstring fuzzer,$(SANITIZE)),-fno-sanitize=fuzzer-no-link))

$(BUILD)/emulated/obj/%.c.o: %.c
	@mkdir -p $(@D)
	@echo '  CC   $< (emulated)'
	$(Q)$(CC) $(CFLAGS) -I$(EMULATE) -I. -c $< -o $@

$(BUILD)/emulated/obj/%.cu.o: %.cu
	@mkdir -p $(@D)
	@echo '  CXX  $< (emulated)'
	$(Q)$(CXX) -I$(EMULATE) $(EMULATED_CXX) -x c++ -c $< -o $@

# ThreadSanitizer sees what kernels do, and not what carries them from lane to lane.
$(patsubst %,$(BUILD)/emulated/obj/%.o,$(wildcard $(EMULATE)/*.c)): CFLAGS += $(if $(findstring thread,$(SANITIZE)),-fno-sanitize=thread -DEMULATED_TSAN)

$(BUILD)/emulated/libtern_cuda.so: $(EMULATED_OBJ)
	@echo '  LINK $@'
	$(Q)$(CXX) -shared -Wl,-soname,libtern_cuda.so $(LDFLAGS) $^ -o $@ -lpthread

emulated: $(BUILD)/emulated/libtern_cuda.so $(BUILD)/tests/emulated/test_schedules $(BUILD)/tests/emulated/test_ahead $(BUILD)/tests/emulated/test_divide
.PHONY: emulated
-include $(shell find $(BUILD)/emulated/obj -name '*.d' 2>/dev/null)

EMULATED_TESTS := $(BUILD)/tests/emulated/test_schedules $(BUILD)/tests/emulated/test_ahead
$(EMULATED_TESTS): $(BUILD)/tests/emulated/%: $(BUILD)/obj/$(EMULATE)/%.o $(BUILD)/obj/$(EMULATE)/seeded.o $(INSIDE)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) $^ -o $@ $(LDLIBS)

$(BUILD)/tests/emulated/test_divide: $(BUILD)/emulated/obj/$(EMULATE)/test_divide.cu.o $(filter $(BUILD)/emulated/obj/$(EMULATE)/%.c.o,$(EMULATED_OBJ))
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CXX) $(LDFLAGS) $^ -o $@ $(LDLIBS)
