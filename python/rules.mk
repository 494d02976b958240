# SPDX-License-Identifier: Apache-2.0
# _calls.abi3.so, the compiled part of the Python package, on CPython's limited API: one object for every Python from 3.10 on. It is built where
# the headers of a Python are: the system's, or PYTHON's. It is given libtern's functions by the package, and needs no library but libc.
PYTHON  ?= python3
PYTHON_INCLUDE ?= $(or $(patsubst %/Python.h,%,$(lastword $(wildcard /usr/include/python3.*/Python.h))),$(shell \
		   $(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null))
CALLS     := $(if $(wildcard $(PYTHON_INCLUDE)/Python.h),$(BUILD)/_calls.abi3.so)
CALLS_OBJ := $(call obj,$(wildcard python/calls/*.c))

all: $(CALLS)

$(BUILD)/obj/python/calls/%.o: CFLAGS += -DPy_LIMITED_API=0x030A0000 -isystem $(PYTHON_INCLUDE)

$(BUILD)/_calls.abi3.so: LDFLAGS += $(if $(SANITIZE),$(if $(findstring clang,$(CC)),-shared-libsan))
$(BUILD)/_calls.abi3.so: $(CALLS_OBJ)
	@echo '  LINK $@'
	$(Q)$(CC) -shared $(LDFLAGS) $^ -o $@

$(PORTABLE)/_calls.abi3.so: $(CALLS_OBJ) $(STUBS)/libc.so
	@echo '  LINK $@'
	$(Q)$(CC) -shared $(LDFLAGS) $(filter %.o,$^) -o $@ -s $(FOR_GLIBC)
