"""The runner ``onnxruntime``: graphs between the engine's own attention layers."""
