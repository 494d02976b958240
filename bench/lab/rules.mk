# SPDX-License-Identifier: Apache-2.0
# make lab        what measures the GPU kernels by themselves; needs nvcc, and is not part of `make`
NVCC      ?= nvcc
GPU_ARCH  ?= sm_90a
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v $(NVCC) 2>/dev/null)))
NVFLAGS   += -O3 -std=c++17 -gencode=arch=$(GPU_ARCH:sm_%=compute_%),code=$(GPU_ARCH) -Isrc -I. -Ibench/lab
LAB_SRC   := $(wildcard bench/lab/*.c)
LAB_CU    := $(wildcard bench/lab/*.cu src/kernels/cuda/*.cu)

$(BUILD)/obj/%.cu.o: %.cu $(wildcard src/kernels/cuda/*.h src/kernels/cuda/*.cuh bench/lab/*.h)
	@mkdir -p $(@D)
	@echo '  NVCC $<'
	$(Q)$(NVCC) $(NVFLAGS) -c $< -o $@

$(call obj,$(LAB_SRC)): CFLAGS += -I. -Ibench/lab -isystem $(CUDA_HOME)/include

lab: $(BUILD)/tern-lab-ll
$(BUILD)/tern-lab-ll: $(call obj,$(LAB_SRC) $(filter-out bench/signal%,$(BENCH_SRC))) $(patsubst %,$(BUILD)/obj/%.o,$(LAB_CU)) $(BUILD)/libtern.a
	@echo '  LINK $@'
	$(Q)$(NVCC) $(NVFLAGS) $^ -o $@ -lm

.PHONY: lab
