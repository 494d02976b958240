# SPDX-License-Identifier: Apache-2.0
# make            the command and the libraries, in build/       make demo     ranks that generate text together
# make check      install what the tests need, build, run all    make install PREFIX=/usr/local DESTDIR=
# make soak       random exchanges and faults for longer: SECONDS=600 SEED=1
# make check-torch   models of transformers over torch, in an environment of its own, which takes 3 GB
# make BUILD=dir CC=clang SANITIZE=address,undefined             another build beside it       make V=1   the commands themselves
BUILD    ?= build
PREFIX   ?= /usr/local
RANKS    ?= 4
ifeq ($(origin CC),default)
CC        = gcc
endif
OPT      ?= -O3 -g
SANITIZE ?=
Q        := $(if $(V),,@)
VERSION  := $(shell awk '/define TERN_VERSION_(MAJOR|MINOR|PATCH)/ {v = v s $$3; s = "."} END {print v}' include/tern.h)
SOVERSION := $(firstword $(subst ., ,$(VERSION)))

# Results are compared bit for bit between machines, so a*b+c may not become one rounding on some of them.
CFLAGS   += -std=gnu11 -D_GNU_SOURCE $(OPT) -ffp-contract=off -fno-trapping-math -fPIC -fvisibility=hidden -Wall -Wextra -Wpointer-arith -Wstrict-prototypes \
	    -Iinclude -Isrc -MMD -MP $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer)
LDFLAGS  += $(if $(SANITIZE),-fsanitize=$(SANITIZE))
LDLIBS   += -lpthread -ldl -lm

# PMIx is found at build time and loaded at run time, so the library does not depend on it.
PMIX     := $(shell pkg-config --exists pmix 2>/dev/null && echo yes)
# So is libfabric.
OFI      := $(shell pkg-config --exists 'libfabric >= 1.17' 2>/dev/null && echo yes)
# So are GPUs: libtern_cuda.so is built where nvcc is (CUDA=0: not; nor with sanitizers), for these architectures and whatever comes after;
# and libtern_bench_cuda.so, which benchmarks and tests have beside it.
NVCC      ?= nvcc
CUDA      ?= $(if $(SANITIZE),0,$(if $(shell command -v $(NVCC) 2>/dev/null),1,0))
CUDA_ARCH ?= 80 90a 100
CUDA_PTX  ?= $(filter 100,$(CUDA_ARCH))
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v $(NVCC) 2>/dev/null)))
comma     := ,
CUDA_LIBS := $(BUILD)/libtern_cuda.so $(BUILD)/libtern_bench_cuda.so
CUDA_SRC  := $(wildcard src/gpu/cuda/*.c) src/exchange/layout.c
BENCH_CUDA_SRC := $(wildcard testkit/device/cuda/*.c bench/nccl/*.c) src/gpu/cuda/check.c
BENCH_CUDA_CU := $(wildcard testkit/device/cuda/*.cu bench/nccl/*.cu)
KERNELS_CU := $(foreach d,ll ht internode plans beside common,$(wildcard src/gpu/cuda/$d/*.cu))
# The experts' kernels are of sm_90a's own instructions.
LAYER_OBJ := $(BUILD)/obj/src/gpu/cuda/layer/$(if $(filter 90a,$(CUDA_ARCH)),gemm.cu.o,none.o)
# What libtern_cuda.so is made of, in wheels too.
CUDA_OBJ   = $(call obj,$(CUDA_SRC)) $(patsubst %,$(BUILD)/obj/%.o,$(KERNELS_CU)) $(LAYER_OBJ)
KERNELS_H := $(wildcard src/gpu/wire/*.h src/gpu/cuda/*.h src/gpu/cuda/*/*.h src/gpu/cuda/*/*.cuh)
NVFLAGS   += -O3 -std=c++17 -Isrc -I. -Iinclude -Xcompiler -fPIC,-fvisibility=hidden $(foreach a,$(CUDA_ARCH),-gencode=arch=compute_$a,code=sm_$a) \
	     $(foreach a,$(CUDA_PTX),-gencode=arch=compute_$a$(comma)code=compute_$a)
# And libibverbs.
VERBS    := $(shell pkg-config --exists 'libibverbs >= 1.14' 2>/dev/null && echo yes)
LIB_DIRS := base balance layer weights group group/boot exchange exchange/cpu exchange/cpu/kernels path engine transport transport/shm gpu/host
LIB_SRC  := $(filter-out src/group/boot/pmix%,$(foreach d,$(LIB_DIRS),$(wildcard src/$d/*.c))) \
	    $(if $(PMIX),src/group/boot/pmix.c src/group/boot/pmix_rendezvous.c,src/group/boot/pmix_none.c) \
	    $(if $(OFI),$(filter-out %/none.c,$(wildcard src/transport/ofi/*.c)),src/transport/ofi/none.c) \
	    $(if $(VERBS),$(filter-out %/none.c,$(wildcard src/transport/verbs/*.c)),src/transport/verbs/none.c)
TESTKIT_SRC := $(wildcard testkit/*.c)
TRACE_SRC := $(wildcard testkit/trace/*.c) bench/command/trace.c bench/command/trace_device.c
# The simulated network is no part of the library: whoever has one hands it over (struct scheduler, struct engine_network).
SIM_SRC  := $(wildcard testkit/sim/*.c)
SOAK_SRC := $(wildcard soak/*.c)
RAW_SRC  := $(if $(OFI),bench/raw/ofi.c,bench/raw/none.c)
FLAGS_SRC := $(addprefix bench/command/,args.c args_values.c flags.c cases.c)
BENCH_SRC := $(filter-out $(TRACE_SRC),$(wildcard bench/command/*.c bench/signal/*.c testkit/device/*.c)) $(RAW_SRC)
AGAINST_SRC := $(wildcard bench/mpi/*.c) $(FLAGS_SRC) $(RAW_SRC)
CLI_SRC  := $(wildcard cli/*.c)
GEN_SRC  := $(wildcard examples/generate/*.c)
obj       = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))

# The comparison with MPI is built where MPI is.
MPICC    := $(shell command -v mpicc 2>/dev/null)

all: $(BUILD)/tern $(BUILD)/libtern.a $(BUILD)/libtern.so $(BUILD)/generate $(BUILD)/tern-posting $(BUILD)/tern-kills $(BUILD)/tern-rest $(BUILD)/tern-beside $(BUILD)/tern-place $(if $(OFI),$(BUILD)/tern-raw-pages) $(if $(MPICC),$(BUILD)/tern-against-mpi) \
     $(if $(filter 1,$(CUDA)),$(CUDA_LIBS))

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	@echo '  CC   $<'
	$(Q)$(CC) $(CFLAGS) -c $< -o $@

$(BUILD)/obj/src/group/boot/pmix.o $(BUILD)/obj/src/group/boot/pmix_rendezvous.o: CFLAGS += $(shell pkg-config --cflags pmix 2>/dev/null)
$(BUILD)/obj/src/transport/ofi/%.o $(BUILD)/obj/bench/raw/%.o: CFLAGS += $(shell pkg-config --cflags libfabric 2>/dev/null)
$(BUILD)/obj/cli/%.o $(BUILD)/obj/bench/%.o $(BUILD)/obj/soak/%.o $(BUILD)/obj/testkit/%.o: CFLAGS += -I. -DTERN_WITH_PMIX=$(if $(PMIX),1,0)

# What was found can change between two makes, and what was built with it then has to follow.
FEATURES := pmix=$(PMIX) ofi=$(OFI) verbs=$(VERBS) cuda=$(CUDA)
$(BUILD)/features: FORCE
	@mkdir -p $(@D); echo '$(FEATURES)' | cmp -s - $@ || echo '$(FEATURES)' > $@
$(BUILD)/obj/cli/info.o $(BUILD)/libtern.a $(BUILD)/libtern.so.$(VERSION) $(BUILD)/tern: $(BUILD)/features

# One relocatable object whose hidden names are made local: the archive defines tern_* and nothing else.
$(BUILD)/libtern.a: $(call obj,$(LIB_SRC))
	@echo '  AR   $@'
	$(Q)$(LD) -r $(filter %.o,$^) -o $(BUILD)/libtern.o
	$(Q)objcopy --localize-hidden $(BUILD)/libtern.o
	$(Q)rm -f $@ && $(AR) rcs $@ $(BUILD)/libtern.o

$(BUILD)/libtern.so.$(VERSION): $(call obj,$(LIB_SRC)) src/tern.map
	@echo '  LINK $@'
	$(Q)$(CC) -shared -Wl,-soname,libtern.so.$(SOVERSION) -Wl,--version-script=src/tern.map -Wl,-z,defs $(LDFLAGS) \
		$(call obj,$(LIB_SRC)) -o $@ $(LDLIBS)

# clang leaves its sanitizers' runtime to the program, which is an interpreter here.
$(BUILD)/libtern.so.$(VERSION): LDFLAGS += $(if $(SANITIZE),$(if $(findstring clang,$(CC)),-shared-libsan))
$(BUILD)/libtern.so: $(BUILD)/libtern.so.$(VERSION)
	$(Q)ln -sf $(<F) $(BUILD)/libtern.so.$(SOVERSION)
	$(Q)ln -sf libtern.so.$(SOVERSION) $@

# The command drives parts that the library does not export, and the simulated network.
$(BUILD)/tern: $(call obj,$(CLI_SRC) $(BENCH_SRC) $(TESTKIT_SRC) $(SIM_SRC) $(SOAK_SRC) $(LIB_SRC))
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) $(filter %.o,$^) -o $@ $(LDLIBS)

# The same with marks of what is done when, for --trace: what has any is compiled once more.
MARKED_SRC := $(shell grep -l 'base/trace\.h"\|engine/record\.h"\|testkit/trace/' $(LIB_SRC) $(TRACE_SRC))
MARKED_OBJ := $(patsubst %.c,$(BUILD)/marked/%.o,$(MARKED_SRC))
$(BUILD)/marked/%.o: %.c
	@mkdir -p $(@D)
	@echo '  CC   $< (with marks)'
	$(Q)$(CC) $(CFLAGS) -I. -DTERN_TRACE -c $< -o $@

traced: $(BUILD)/tern-traced $(if $(filter 1,$(CUDA)),$(BUILD)/libtern_cuda_traced.so)
$(BUILD)/tern-traced: $(call obj,$(filter-out $(MARKED_SRC) bench/command/trace_none.c,$(CLI_SRC) $(BENCH_SRC) $(TESTKIT_SRC) $(SIM_SRC) $(SOAK_SRC) $(LIB_SRC))) $(MARKED_OBJ)
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) $(filter %.o,$^) -o $@ $(LDLIBS)

# What the engine itself costs.
$(BUILD)/tern-posting: $(call obj,bench/engine/posting.c testkit/measure.c $(LIB_SRC))
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) $(filter %.o,$^) -o $@ $(LDLIBS)

# The same pages by libfabric alone, where it is.
$(BUILD)/tern-raw-pages: $(call obj,bench/raw/pages.c $(LIB_SRC))
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) $^ -o $@ $(LDLIBS)

# How long it takes the others when a rank is killed.
$(BUILD)/tern-kills: $(call obj,bench/survive/kills.c $(LIB_SRC))
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) $(filter %.o,$^) -o $@ $(LDLIBS)

# What an elastic exchange takes on GPUs where nobody dies.
$(BUILD)/tern-rest: $(call obj,bench/survive/rest.c testkit/device/load.c testkit/device/rounds.c testkit/device/graphs.c testkit/device/verify.c $(TESTKIT_SRC) $(LIB_SRC))
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) $(filter %.o,$^) -o $@ $(LDLIBS)

# What rounds take while weights move beside them.
$(BUILD)/tern-beside: $(call obj,bench/weights/beside.c $(LIB_SRC))
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) $(filter %.o,$^) -o $@ $(LDLIBS)

# What it takes to put experts into other places.
$(BUILD)/tern-place: $(call obj,bench/weights/place.c $(wildcard testkit/device/*.c) $(TESTKIT_SRC) $(LIB_SRC))
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) $(filter %.o,$^) -o $@ $(LDLIBS)

$(BUILD)/generate: $(call obj,$(GEN_SRC)) $(BUILD)/libtern.a
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) $^ -o $@ $(LDLIBS)

# It quantises and sums with the library's own kernels, so that only the way there and back differs, and asks its engine what it sends.
$(BUILD)/obj/bench/mpi/%.o: override CC = $(MPICC)
$(BUILD)/tern-against-mpi: $(call obj,$(AGAINST_SRC) $(TESTKIT_SRC) $(LIB_SRC)) $(BUILD)/features
	@echo '  LINK $@'
	$(Q)$(MPICC) $(LDFLAGS) $(filter %.o,$^) -o $@ $(LDLIBS)

$(BUILD)/obj/%.cu.o: %.cu $(KERNELS_H) $(wildcard bench/lab/*.h bench/lab/ways/*.h bench/nccl/*.h bench/nccl/*.cuh testkit/device/cuda/*.h)
	@mkdir -p $(@D)
	@echo '  NVCC $<'
	$(Q)$(NVCC) $(NVFLAGS) -c $< -o $@

# CUDA's runtime is inside, so that only the driver is needed where it runs.
$(BUILD)/obj/src/gpu/cuda/layer/gemm.cu.o: CUDA_ARCH := 90a
$(BUILD)/obj/src/gpu/cuda/layer/gemm.cu.o: CUDA_PTX :=
$(call obj,$(CUDA_SRC) $(BENCH_CUDA_SRC) src/gpu/cuda/layer/none.c): CFLAGS += -isystem $(CUDA_HOME)/include
$(BUILD)/libtern_cuda.so: $(CUDA_OBJ)
$(BUILD)/libtern_bench_cuda.so: $(call obj,$(BENCH_CUDA_SRC)) $(patsubst %,$(BUILD)/obj/%.o,$(BENCH_CUDA_CU))
MARKED_CUDA := $(patsubst %,$(BUILD)/marked/%.o,$(CUDA_SRC) $(KERNELS_CU))
$(patsubst %.c,$(BUILD)/marked/%.c.o,$(CUDA_SRC)): $(BUILD)/marked/%.c.o: %.c
	@mkdir -p $(@D)
	@echo '  CC   $< (with marks)'
	$(Q)$(CC) $(CFLAGS) -I. -isystem $(CUDA_HOME)/include -DTERN_TRACE -c $< -o $@
$(BUILD)/marked/%.cu.o: %.cu $(KERNELS_H)
	@mkdir -p $(@D)
	@echo '  NVCC $< (with marks)'
	$(Q)$(NVCC) $(NVFLAGS) -DTERN_TRACE -c $< -o $@
$(BUILD)/marked/src/gpu/cuda/layer/gemm.cu.o: CUDA_ARCH := 90a
$(BUILD)/marked/src/gpu/cuda/layer/gemm.cu.o: CUDA_PTX :=
$(BUILD)/libtern_cuda_traced.so: $(MARKED_CUDA) $(patsubst $(BUILD)/obj/%gemm.cu.o,$(BUILD)/marked/%gemm.cu.o,$(LAYER_OBJ))
$(CUDA_LIBS) $(BUILD)/libtern_cuda_traced.so:
	@echo '  LINK $@'
	$(Q)$(NVCC) -shared -cudart static -Xlinker --exclude-libs,ALL,-soname,$(@F) $^ -o $@

LIBDIR   ?= $(PREFIX)/lib
install: all
	install -d $(addprefix $(DESTDIR),$(PREFIX)/bin $(PREFIX)/include $(LIBDIR)/pkgconfig $(LIBDIR)/cmake/tern)
	install $(wildcard $(BUILD)/tern $(BUILD)/generate) $(DESTDIR)$(PREFIX)/bin
	install -m 644 include/tern.h include/tern_engine.h include/tern_balance.h include/tern_layer.h include/tern_weights.h include/tern_device.cuh $(DESTDIR)$(PREFIX)/include
	install -m 644 $(BUILD)/libtern.a $(DESTDIR)$(LIBDIR)
	install $(BUILD)/libtern.so.$(VERSION) $(DESTDIR)$(LIBDIR)
	$(if $(filter 1,$(CUDA)),install $(CUDA_LIBS) $(DESTDIR)$(LIBDIR))
	ln -sf libtern.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libtern.so.$(SOVERSION)
	ln -sf libtern.so.$(SOVERSION) $(DESTDIR)$(LIBDIR)/libtern.so
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|' src/tern.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/tern.pc
	for file in tern-config.cmake tern-config-version.cmake; do \
		sed 's|@VERSION@|$(VERSION)|; s|@SOVERSION@|$(SOVERSION)|; s|@MAJOR@|$(word 1,$(subst ., ,$(VERSION)))|; s|@MINOR@|$(word 2,$(subst ., ,$(VERSION)))|; '"s|@INCLUDE@|$$(realpath -m --relative-to=$(LIBDIR) $(PREFIX)/include)|" \
			src/$$file.in > $(DESTDIR)$(LIBDIR)/cmake/tern/$$file || exit 1; done

# Over GPUs where NVIDIA's driver is, and all that it takes besides; what was chosen is the first line that it prints.
DRIVER   := $(wildcard /dev/nvidiactl /dev/dxg)
demo: $(BUILD)/tern $(BUILD)/generate $(if $(DRIVER),$(if $(filter 1,$(CUDA)),$(BUILD)/libtern_cuda.so))
	$(BUILD)/tern run -n $(RANKS) -- $(BUILD)/generate $(if $(DRIVER),--device auto) $(DEMO_FLAGS)

clean:
	rm -rf $(BUILD)

.PHONY: all traced demo install clean FORCE
-include packaging/glibc/rules.mk
-include python/rules.mk
-include tests/rules.mk
-include bench/lab/rules.mk
-include tests/device/emulate/rules.mk
-include $(shell find $(BUILD)/obj $(BUILD)/marked -name '*.d' 2>/dev/null)
