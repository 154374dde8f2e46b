"""Public measurements of GPU memory, their workloads rebuilt, and the comparison."""
