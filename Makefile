# SPDX-License-Identifier: Apache-2.0
# Builds dpquant: sources found by wildcard, objects in build/<variant>/, the program at build/dpquant.
#
#   make [DEBUG=1] [SAN=address,undefined] [WERROR=1] [CUDA=auto|0|1] [NCCL=auto|0|1] [V=1]
#   make bench            benchmark programs in build/bench
#   make check | check-mpi NP="1 2 3 4" | lint | format-check | docs | install PREFIX=/usr/local | clean
#
# Settings of one machine (CC, EXTRA_CFLAGS, EXTRA_LDLIBS, PREFIX, NVCC, ...) go into config.mk, which is not tracked.

MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:

-include config.mk

VERSION := 0.1.0
DEBUG ?= 0
SAN ?=
WERROR ?= 0
CUDA ?= auto
NCCL ?= auto
V ?= 0
NP ?= 1 2 3 4
PREFIX ?= /usr/local
DESTDIR ?=

ifeq ($(origin CC),default)
CC := mpicc
endif
ifeq ($(origin AR),default)
AR := ar
endif
PKG_CONFIG ?= pkg-config
CLANG_FORMAT ?= clang-format
NVCC ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))

Q := @
say = @printf '  %-7s %s\n' '$(1)' '$(2)'
ifeq ($(V),1)
Q :=
say = @:
endif

comma := ,
VARIANT := $(if $(filter 1,$(DEBUG)),debug,release)$(if $(SAN),-$(subst $(comma),-,$(SAN)))
B := build/$(VARIANT)

# ---- flags: nothing here may change the order of floating-point sums or assume values are finite
OPT := -O3 -g
DEFS := -D_GNU_SOURCE
ifeq ($(DEBUG),1)
OPT := -Og -g3
DEFS += -DDPQ_DEBUG=1
endif
ifneq ($(SAN),)
OPT := -O1 -g -fno-omit-frame-pointer
DEFS += -DDPQ_NO_CLONES -DDPQ_FAULT_INJECTION
SANFLAGS := -fsanitize=$(SAN) -fno-sanitize-recover=all
endif
FLOATS := -ffp-contract=off -fno-math-errno -fno-trapping-math
WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wvla $(if $(filter 1,$(WERROR)),-Werror)
CFLAGS_ALL = -std=c11 $(DEFS) $(OPT) -fopenmp $(FLOATS) $(SANFLAGS) $(EXTRA_CFLAGS)

# ---- libraries; a goal that compiles nothing must work without any of them
HDF5_PC := $(shell $(PKG_CONFIG) --exists hdf5-serial 2>/dev/null && echo hdf5-serial || echo hdf5)
PACKAGES := $(HDF5_PC) yaml-0.1 jansson libpcre2-8
MISSING := $(shell for p in $(PACKAGES); do $(PKG_CONFIG) --exists $$p 2>/dev/null || echo $$p; done; \
	command -v $(firstword $(CC)) >/dev/null || echo $(firstword $(CC)))
BLAS_PC := $(shell for p in openblas lapacke; do $(PKG_CONFIG) --exists $$p 2>/dev/null && echo $$p; done)
ifeq ($(MISSING),)
PC_CFLAGS := $(shell $(PKG_CONFIG) --cflags $(PACKAGES) $(BLAS_PC))
PC_LIBS := $(shell $(PKG_CONFIG) --libs $(PACKAGES))
BLAS_LIBS := $(if $(filter openblas,$(BLAS_PC)),$(shell $(PKG_CONFIG) --libs openblas),-lopenblas)
endif
CPPFLAGS_ALL = -Iinclude -I$(B) $(PC_CFLAGS)
LDFLAGS_ALL = -fopenmp $(SANFLAGS) $(EXTRA_LDFLAGS)
LDLIBS_ALL = $(PC_LIBS) -ldnnl -llapacke $(BLAS_LIBS) -lm -lpthread $(EXTRA_LDLIBS)

# ---- files
SOURCES := $(sort $(wildcard src/*/*.c))
MAIN := src/cli/main.c
OBJECTS := $(SOURCES:%.c=$(B)/%.o)
MAIN_OBJECT := $(MAIN:%.c=$(B)/%.o)
LIBRARY := $(B)/libdpquant.a

TEST_DIRS := unit ops mpi
TEST_SOURCES := $(sort $(wildcard $(TEST_DIRS:%=tests/%/*.c)))
TEST_MAINS := $(foreach f,$(TEST_SOURCES),$(if $(filter test_%,$(notdir $(f))),$(f)))
TEST_HELPERS := $(filter-out $(TEST_MAINS),$(TEST_SOURCES))
TEST_PROGRAMS := $(TEST_MAINS:%.c=$(B)/%)
TEST_OBJECTS := $(TEST_SOURCES:%.c=$(B)/%.o)
TEST_LIBRARY := $(B)/libdpqtest.a
CLI_TOOLS := $(patsubst %.c,$(B)/%,$(sort $(wildcard tests/cli/*.c)))

.PHONY: all program tests bench check check-mpi lint format-check docs install clean print-variant print-missing gpu force

all: gpu program

# The variant built last is the one at build/dpquant.
program: $(B)/dpquant
	@cmp -s $(B)/dpquant build/dpquant || { ln -f $(B)/dpquant build/dpquant 2>/dev/null || cp -f $(B)/dpquant build/dpquant; }

tests: $(TEST_PROGRAMS) $(CLI_TOOLS)

$(B)/dpquant: $(MAIN_OBJECT) $(LIBRARY)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS_ALL) $(LDFLAGS_ALL) -o $@ $^ $(LDLIBS_ALL)

# Archives are made anew, so that the object of a deleted source does not stay in them.
$(LIBRARY): $(filter-out $(MAIN_OBJECT),$(OBJECTS)) $(B)/sources.txt
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) rcs $@ $(filter %.o,$^)

$(TEST_LIBRARY): $(TEST_HELPERS:%.c=$(B)/%.o) $(B)/sources.txt
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) rcs $@ $(filter %.o,$^)

$(TEST_PROGRAMS): $(B)/%: $(B)/%.o $(TEST_LIBRARY) $(LIBRARY)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS_ALL) $(LDFLAGS_ALL) -o $@ $< $(TEST_LIBRARY) $(LIBRARY) -lcmocka $(LDLIBS_ALL)

$(CLI_TOOLS): $(B)/%: %.c $(LIBRARY) $(B)/flags.txt
	$(call say,LD,$@)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(WARN) $(LDFLAGS_ALL) -o $@ $< $(LIBRARY) $(LDLIBS_ALL)

$(OBJECTS): $(B)/%.o: %.c $(B)/flags.txt | $(B)/version.h
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(WARN) -MMD -MP -c -o $@ $<

$(TEST_OBJECTS): $(B)/%.o: %.c $(B)/flags.txt | $(B)/version.h
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS_ALL) -Itests $(CFLAGS_ALL) $(WARN) -MMD -MP -c -o $@ $<

-include $(OBJECTS:.o=.d) $(TEST_OBJECTS:.o=.d)

# ---- benchmarks: make bench, then build/bench/<name>
BENCH_PROGRAMS := $(patsubst scripts/bench/%.c,$(B)/bench/%,$(sort $(wildcard scripts/bench/*.c)))

$(BENCH_PROGRAMS): $(B)/bench/%: scripts/bench/%.c $(LIBRARY)
	$(call say,LD,$@)
	@mkdir -p $(@D) build/bench
	$(Q)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(WARN) $(LDFLAGS_ALL) -o $@ $< $(LIBRARY) $(LDLIBS_ALL)
	@cp -f $@ build/bench/

bench: $(BENCH_PROGRAMS)

# ---- generated files, rewritten only when their content changes
replace = cmp -s $@.new $@ && rm -f $@.new || mv -f $@.new $@

$(B)/flags.txt: force
ifneq ($(MISSING),)
	$(error not found: $(MISSING); run scripts/bootstrap.sh install)
endif
	@mkdir -p $(@D)
	@printf '%s\n' '$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(WARN) $(LDFLAGS_ALL) $(LDLIBS_ALL)' > $@.new
	@$(replace)

$(B)/sources.txt: force
	@mkdir -p $(@D)
	@printf '%s\n' $(SOURCES) $(TEST_HELPERS) > $@.new
	@$(replace)

$(B)/version.h: force
	@mkdir -p $(@D)
	@{ echo '/* Generated by the Makefile. */'; \
	   echo '#define DPQ_VERSION "$(VERSION)"'; \
	   echo "#define DPQ_GIT_COMMIT \"$$(git describe --always --dirty --abbrev=12 --exclude '*' 2>/dev/null || echo unknown)\""; \
	   echo "#define DPQ_COMPILER \"$$($(CC) --version 2>/dev/null | sed -n 's/["\\]//g;1p')\""; \
	   echo '#define DPQ_COMPILER_FLAGS "$(strip $(subst ",,$(CFLAGS_ALL)))"'; \
	   echo '#define DPQ_BUILD_VARIANT "$(VARIANT)"'; } > $@.new
	@$(replace)

# ---- CUDA and NCCL: compile and link one line each, once per setting; the outcome is printed with every build
PROBE := build/probe-cuda-$(CUDA)-nccl-$(NCCL).txt

gpu: $(PROBE)
	@cat $(PROBE)

$(PROBE): scripts/probe_gpu.sh
	@mkdir -p build
	@NVCC='$(NVCC)' CC='$(CC)' sh scripts/probe_gpu.sh '$(CUDA)' '$(NCCL)' > $@

# ---- checks
check:
	+@scripts/run_tests.sh unit ops bad cli

check-mpi:
	+@NP='$(NP)' scripts/run_tests.sh mpi

lint:
	@scripts/check_rules.sh

format-check:
	@command -v $(CLANG_FORMAT) >/dev/null || { echo 'format-check: $(CLANG_FORMAT) not found' >&2; exit 1; }
	@$(CLANG_FORMAT) --dry-run -Werror $(SOURCES) $(TEST_SOURCES) $(wildcard include/dpquant/*.h src/*/*.h tests/*/*.h)

docs: program
	$(call say,DOC,docs/CONFIG.md)
	$(Q)build/dpquant list config --markdown > $(B)/CONFIG.md
	$(Q)mkdir -p docs && cp $(B)/CONFIG.md docs/CONFIG.md

install: program
	$(call say,INSTALL,$(DESTDIR)$(PREFIX))
	$(Q)install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/dpquant/configs
	$(Q)install -m 755 $(B)/dpquant $(DESTDIR)$(PREFIX)/bin/dpquant
	$(Q)install -m 755 scripts/sweep.sh $(DESTDIR)$(PREFIX)/bin/dpquant-sweep
	$(Q)install -m 755 scripts/text_to_h5.py $(DESTDIR)$(PREFIX)/share/dpquant/text_to_h5.py
	$(Q)install -m 644 LICENSE $(DESTDIR)$(PREFIX)/share/dpquant/LICENSE
	$(Q)for f in $(wildcard configs/*.yaml); do install -m 644 $$f $(DESTDIR)$(PREFIX)/share/dpquant/configs/ || exit 1; done

clean:
	$(call say,CLEAN,build)
	$(Q)rm -rf build

print-variant:
	@echo $(VARIANT)

print-missing:
	@echo $(MISSING)

force:
