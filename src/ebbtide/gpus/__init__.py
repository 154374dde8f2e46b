"""What a GPU is: specifications, the names people use, CUDA's context, cloud offers.

Nothing is read before it is asked for, and nothing here needs torch.
"""

from ebbtide.gpus.catalogue import catalogue
from ebbtide.gpus.context import context_bytes
from ebbtide.gpus.lookup import candidates, find
from ebbtide.gpus.spec import Gpu, Source

__all__ = ["Gpu", "Source", "candidates", "catalogue", "context_bytes", "find"]
