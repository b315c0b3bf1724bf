"""Finished ONNX files: a graph that holds a whole decoder is cut at its attentions."""
