"""What CUDA kernels allocate besides their outputs, and which kernel CUDA picks.

Pure functions of tensor metadata and a `KernelContext`. Every rule names the
PyTorch source and the versions it holds for; only `sdpa` imports torch.
"""
