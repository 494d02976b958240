# SPDX-License-Identifier: Apache-2.0
# make portable: libtern.so, the command and, with CUDA=1, libtern_cuda.so in $(BUILD)/portable, for every glibc from 2.28 on
# (manylinux_2_28), from the objects of any other build. Python wheels are made of these.
PORTABLE  := $(BUILD)/portable
STUBS     := $(PORTABLE)/stubs
FOR_GLIBC := -L$(STUBS) -Wl,--no-as-needed -ldl -lpthread -lm -lloader -Wl,--allow-shlib-undefined
LATER     := $(call obj,packaging/glibc/later.c)

portable: $(PORTABLE)/libtern.so.$(SOVERSION) $(PORTABLE)/tern $(if $(filter 1,$(CUDA)),$(PORTABLE)/libtern_cuda.so)

$(STUBS)/libc.so: packaging/glibc/stubs.sh
	@echo '  STUB $@'
	$(Q)CC='$(CC)' packaging/glibc/stubs.sh $(STUBS) 2.28

$(PORTABLE)/libtern.so.$(SOVERSION): $(call obj,$(LIB_SRC)) $(LATER) src/tern.map $(STUBS)/libc.so
	@echo '  LINK $@'
	$(Q)$(CC) -shared -Wl,-soname,libtern.so.$(SOVERSION) -Wl,--version-script=src/tern.map -Wl,-z,defs $(LDFLAGS) \
		$(filter %.o,$^) -o $@ -s $(FOR_GLIBC)

$(PORTABLE)/tern: $(call obj,$(CLI_SRC) $(BENCH_SRC) $(TESTKIT_SRC) $(SIM_SRC) $(SOAK_SRC) $(LIB_SRC)) $(LATER) $(STUBS)/libc.so
	@echo '  LINK $@'
	$(Q)$(CC) $(LDFLAGS) $(filter %.o,$^) -o $@ -s $(FOR_GLIBC)

$(PORTABLE)/libtern_cuda.so: $(CUDA_OBJ) $(LATER) $(STUBS)/libc.so
	@echo '  LINK $@'
	$(Q)$(NVCC) -shared -cudart static -Xlinker --exclude-libs,ALL,-soname,$(@F) $(filter %.o,$^) -o $@ -Xlinker -s \
		-L$(STUBS) -Xlinker --no-as-needed -ldl -lpthread -lm -lloader -Xlinker --allow-shlib-undefined,-z,defs

.PHONY: portable
