"""Everything that programs ask of `cuda` besides tensor operations.

One file a concept, each with ``install(vgpu, patches)``: it replaces the parts of
PyTorch that would look for a GPU, and the `PatchSet` puts all of them back.
"""
