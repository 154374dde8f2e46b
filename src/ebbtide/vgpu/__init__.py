"""The virtual GPU: `cuda` code on fake tensors, its kernels, its allocator, its clock."""
