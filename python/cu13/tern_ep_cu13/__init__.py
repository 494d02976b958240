# SPDX-License-Identifier: Apache-2.0
"""Tern's kernels for NVIDIA GPUs, built with CUDA 13: libtern_cuda.so, which the package tern_ep finds here. CUDA's runtime is inside;
NVIDIA's driver has to be there."""
