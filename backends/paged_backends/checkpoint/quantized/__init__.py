"""Safetensors whose matrices are quantised: by GPTQ, by AWQ, or by compressed-tensors."""
