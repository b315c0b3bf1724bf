"""Where kernels in Triton run in tests: on a GPU, or on a CPU in Triton's interpreter."""

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
