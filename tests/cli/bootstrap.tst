# SPDX-License-Identifier: Apache-2.0
# scripts/bootstrap.sh where it may not install, and the probes of the Makefile; nothing here installs anything.

F 2 "install . build . demo . check" scripts/bootstrap.sh
F 2 "install . build . demo . check" scripts/bootstrap.sh everything
# the tests were built, so everything is there; should the script think otherwise, it must not get at the real apt-get
P 0 "all dependencies are there" mkdir $TMP/bin && printf '#!/bin/sh\nexit 1\n' > $TMP/bin/apt-get && chmod +x $TMP/bin/apt-get && \
  PATH=$TMP/bin:$PATH scripts/bootstrap.sh install
# an apt-get that brings nothing does not count as success
F 1 "still not found: .*libjansson-dev" mkdir $TMP/bin && printf '#!/bin/sh\n' > $TMP/bin/apt-get && printf '#!/bin/sh\nshift; exec "$@"\n' > $TMP/bin/sudo && \
  chmod +x $TMP/bin/* && PKG_CONFIG_LIBDIR=/nonexistent PATH=$TMP/bin:$PATH scripts/bootstrap.sh install
# not root, and sudo asks for a password: one line to run
F 1 "sudo apt-get update && sudo apt-get install -y .* libjansson-dev" mkdir $TMP/bin && printf '#!/bin/sh\nexit 1\n' > $TMP/bin/sudo && \
  printf '#!/bin/sh\n' > $TMP/bin/apt-get && printf '#!/bin/sh\necho 1000\n' > $TMP/bin/id && chmod +x $TMP/bin/* && \
  PKG_CONFIG_LIBDIR=/nonexistent PATH=$TMP/bin:$PATH scripts/bootstrap.sh install

F 1 "CUDA=1 was asked for, but there is no usable CUDA: nvcc not found" NVCC= scripts/probe_gpu.sh 1 auto
F 1 "NCCL=1 was asked for, but there is no usable NCCL: needs CUDA" NVCC= scripts/probe_gpu.sh auto 1
F 2 "take auto, 0 or 1, not 'yes'" scripts/probe_gpu.sh yes auto
P 0 "^CUDA: no .switched off.; NCCL: no .needs CUDA.; building the CPU product$" scripts/probe_gpu.sh 0 auto
P 0 "building the CPU product$" NVCC= scripts/probe_gpu.sh auto auto
# a library that is not there stops the build by name, and make clean does not need it
F 2 "not found: .*jansson.*; run scripts/bootstrap.sh install" PKG_CONFIG_LIBDIR=/nonexistent make -n all
P 0 "rm -rf build" PKG_CONFIG_LIBDIR=/nonexistent make -n clean
