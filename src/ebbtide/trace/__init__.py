"""The trace of a workload, and the memory snapshots of PyTorch."""
