# SPDX-License-Identifier: Apache-2.0
# libtern_cuda.so and libtern_bench_cuda.so for emulated GPUs: what is in them as it is, compiled for the CPU; CUDA's runtime, which they share, is
# tests/device/emulate/, in libtern_emulated.so. Needs g++, no nvcc.
CXX          ?= g++
EMULATE      := tests/device/emulate
EMULATED_SRC := $(filter-out %/seeded.c $(EMULATE)/test_%.c,$(wildcard $(EMULATE)/*.c))
EMULATED     := $(BUILD)/emulated/libtern_cuda.so $(BUILD)/emulated/libtern_bench_cuda.so
emulated_obj  = $(patsubst %,$(BUILD)/emulated/obj/%.o,$(1))
LAB_C        := $(wildcard bench/lab/*.c bench/lab/*/*.c)
# C++ has neither unused kernels nor unrolling by pragma; clang++ says so of each loop. What it checks of calls through
# pointers needs a runtime of C++, which programs in C that load this do not have. No fuzzer looks at kernels. A lane may
# reckon an address from no pointer, where it does not load: that is left to the check of what is loaded.
# What lanes do is little beside their changing places: optimising it takes longer than it saves, and the more so with
# sanitizers.
EMULATED_CXX  = $(filter-out -std=gnu11 -Wstrict-prototypes,$(CFLAGS)) $(if $(SANITIZE),-O0,-O1) -g1 -fno-exceptions -std=gnu++17 -Wno-unknown-pragmas -Wno-sign-compare -Wno-unused-function -Wno-unused-parameter -I. \
		 $(if $(findstring clang,$(CXX)),-Wno-pass-failed $(if $(findstring undefined,$(SANITIZE)),-fno-sanitize=function$(comma)vptr$(comma)pointer-overflow) \
		 $(if $(findstring fuzzer,$(SANITIZE)),-fno-sanitize=fuzzer-no-link))

# With marks, which are asked for: tern-traced's GPUs, too. Warps mark one place one after the other.
EMULATED_MARKS := $(if $(findstring thread,$(SANITIZE)),,-DTERN_TRACE)
$(call emulated_obj,$(CUDA_SRC) $(LAB_C)): CFLAGS += $(EMULATED_MARKS)
$(call emulated_obj,$(KERNELS_CU) $(EMULATE)/layer.cu bench/lab/floor.cu): EMULATED_CXX += $(EMULATED_MARKS)

$(BUILD)/emulated/obj/%.c.o: %.c
	@mkdir -p $(@D)
	@echo '  CC   $< (emulated)'
	$(Q)$(CC) $(CFLAGS) -I$(EMULATE) -I. -c $< -o $@

$(BUILD)/emulated/obj/%.cu.o: %.cu
	@mkdir -p $(@D)
	@echo '  CXX  $< (emulated)'
	$(Q)$(CXX) -I$(EMULATE) $(EMULATED_CXX) -x c++ -c $< -o $@

# Sanitizers leave room between what lies on stacks. ThreadSanitizer sees what kernels do, and not what carries them from
# lane to lane.
$(call emulated_obj,$(wildcard $(EMULATE)/*.c)): CFLAGS += -DEMULATED_STACK_KIB=$(if $(SANITIZE),64,16) $(if $(findstring thread,$(SANITIZE)),-fno-sanitize=thread -DEMULATED_TSAN)

$(BUILD)/emulated/libtern_emulated.so: $(call emulated_obj,$(EMULATED_SRC) $(EMULATE)/nccl.cu)
$(BUILD)/emulated/libtern_cuda.so: $(call emulated_obj,$(CUDA_SRC) $(KERNELS_CU) $(EMULATE)/layer.cu) $(BUILD)/emulated/libtern_emulated.so
$(BUILD)/emulated/libtern_bench_cuda.so: $(call emulated_obj,$(BENCH_CUDA_SRC) $(BENCH_CUDA_CU)) $(BUILD)/emulated/libtern_emulated.so
$(BUILD)/emulated/libtern_emulated.so $(EMULATED):
	@echo '  LINK $@'
	$(Q)$(CXX) -shared -Wl,-soname,$(@F) -Wl,-rpath,'$$ORIGIN' $(if $(SANITIZE),,-Wl,-z,defs) $(LDFLAGS) $^ -o $@ -lpthread

$(BUILD)/emulated/tern-lab-ll: $(call emulated_obj,$(LAB_SRC) bench/lab/floor.cu $(KERNELS_CU) $(EMULATE)/layer.cu) $(call obj,$(TESTKIT_SRC)) $(BUILD)/emulated/libtern_emulated.so $(BUILD)/libtern.a
	@echo '  LINK $@'
	$(Q)$(CXX) -Wl,-rpath,'$$ORIGIN' $(LDFLAGS) $^ -o $@ $(LDLIBS)

EMULATED_TESTS := $(BUILD)/tests/emulated/test_schedules $(BUILD)/tests/emulated/test_ahead $(BUILD)/tests/emulated/test_gates
EMULATED_UNITS := $(BUILD)/tests/emulated/test_divide $(BUILD)/tests/emulated/test_fences
# The lab, too, so that what a change leaves behind there is seen where no nvcc is. make check verifies with one program.
EMULATED_LAB := $(if $(SANITIZE),,$(call emulated_obj,$(LAB_C)) $(BUILD)/emulated/tern-lab-ll)
emulated: $(EMULATED) $(EMULATED_TESTS) $(EMULATED_UNITS) $(EMULATED_LAB)
.PHONY: emulated
-include $(shell find $(BUILD)/emulated/obj -name '*.d' 2>/dev/null)

$(EMULATED_TESTS): $(BUILD)/tests/emulated/%: $(BUILD)/obj/$(EMULATE)/%.o $(BUILD)/obj/$(EMULATE)/seeded.o $(INSIDE)
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) $^ -o $@ $(LDLIBS)

$(EMULATED_UNITS): $(BUILD)/tests/emulated/%: $(call emulated_obj,$(EMULATE)/%.cu $(EMULATED_SRC))
	@mkdir -p $(@D)
	@echo '  LINK $@'
	$(Q)$(CXX) $(LDFLAGS) $^ -o $@ $(LDLIBS)
