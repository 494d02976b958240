# SPDX-License-Identifier: Apache-2.0
# make lab        what measures the GPU kernels by themselves; needs nvcc, and is not part of `make`
LAB_HT    := bench/lab/ht.c bench/lab/time_ht.c bench/lab/gpus.c bench/lab/times.c
LAB_SRC   := $(filter-out bench/lab/ht.c bench/lab/time_ht.c,$(wildcard bench/lab/*.c))
LAB_WAYS  := bench/lab/ways/ways.c bench/lab/gpus.c bench/lab/times.c
LAB_CU    := $(wildcard bench/lab/*.cu) $(KERNELS_CU)

$(call obj,$(LAB_SRC) $(LAB_HT) $(LAB_WAYS)): CFLAGS += -I. -isystem $(CUDA_HOME)/include

# With trace marks: kernels and what fills their arguments, compiled apart.
TRACED_CU := bench/lab/floor.cu $(wildcard src/gpu/cuda/ll/*.cu src/gpu/cuda/internode/*_ll.cu)
traced     = $(patsubst %,$(BUILD)/traced/%.o,$(1))

$(BUILD)/traced/%.c.o: %.c
	@mkdir -p $(@D)
	@echo '  CC   $< (traced)'
	$(Q)$(CC) $(CFLAGS) -I. -isystem $(CUDA_HOME)/include -DTERN_TRACE -c $< -o $@

$(BUILD)/traced/%.cu.o: %.cu $(KERNELS_H) $(wildcard bench/lab/*.h)
	@mkdir -p $(@D)
	@echo '  NVCC $< (traced)'
	$(Q)$(NVCC) $(NVFLAGS) -DTERN_TRACE -c $< -o $@

-include $(shell find $(BUILD)/traced -name '*.d' 2>/dev/null)

lab: $(BUILD)/tern-lab-teardown $(BUILD)/tern-lab-ll $(BUILD)/tern-lab-trace $(BUILD)/tern-lab-ht $(BUILD)/tern-lab-ways $(BUILD)/tern-lab-notes $(BUILD)/tern-lab-planted $(BUILD)/tern-lab-pieces \
     $(BUILD)/tern-lab-gemm $(BUILD)/tern-lab-gemm-trace

$(BUILD)/tern-lab-ll: $(call obj,$(LAB_SRC) $(TESTKIT_SRC)) $(patsubst %,$(BUILD)/obj/%.o,$(LAB_CU)) $(BUILD)/libtern.a
	@echo '  LINK $@'
	$(Q)$(NVCC) $(NVFLAGS) $^ -o $@ -lm

$(BUILD)/tern-lab-trace: $(call traced,$(LAB_SRC) $(TRACED_CU)) $(call obj,$(TESTKIT_SRC)) $(BUILD)/libtern.a
	@echo '  LINK $@'
	$(Q)$(NVCC) $(NVFLAGS) $^ -o $@ -lm

$(BUILD)/tern-lab-ht: $(call obj,$(LAB_HT) $(TESTKIT_SRC)) $(patsubst %,$(BUILD)/obj/%.o,$(LAB_CU)) $(BUILD)/libtern.a
	@echo '  LINK $@'
	$(Q)$(NVCC) $(NVFLAGS) $^ -o $@ -lm

$(BUILD)/tern-lab-ways: $(call obj,$(LAB_WAYS) $(TESTKIT_SRC)) $(patsubst %,$(BUILD)/obj/%.o,$(LAB_CU) bench/lab/ways/transfer.cu) $(BUILD)/libtern.a
	@echo '  LINK $@'
	$(Q)$(NVCC) $(NVFLAGS) $^ -o $@ -lm

# Kernels and host code together.
$(BUILD)/tern-lab-notes: $(wildcard bench/lab/notes/*.cu)
$(BUILD)/tern-lab-planted: bench/lab/planted/planted.cu
$(BUILD)/tern-lab-pieces: $(wildcard bench/lab/pieces/*.cu)
$(BUILD)/tern-lab-teardown: bench/lab/teardown/teardown.cu
$(BUILD)/tern-lab-notes $(BUILD)/tern-lab-planted $(BUILD)/tern-lab-pieces $(BUILD)/tern-lab-teardown: $(KERNELS_H) bench/lab/check.h
	@mkdir -p $(@D)
	@echo '  NVCC $(filter %.cu,$^)'
	$(Q)$(NVCC) $(NVFLAGS) -lineinfo $(filter %.cu,$^) -o $@

# Of sm_90a's own instructions, whatever CUDA_ARCH says.
GEMM_CU := $(wildcard bench/lab/gemm/*.cu src/gpu/cuda/layer/*.cu)
$(BUILD)/tern-lab-gemm-trace: NVFLAGS += -DTERN_TRACE
$(BUILD)/tern-lab-gemm $(BUILD)/tern-lab-gemm-trace: $(GEMM_CU) $(wildcard bench/lab/gemm/*.h) $(KERNELS_H) bench/lab/check.h
	@mkdir -p $(@D)
	@echo '  NVCC $@'
	$(Q)$(NVCC) $(filter-out -gencode=%,$(NVFLAGS)) -gencode=arch=compute_90a,code=sm_90a -lineinfo $(GEMM_CU) -o $@

.PHONY: lab
