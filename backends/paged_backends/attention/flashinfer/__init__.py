"""Component ``flashinfer``: the package FlashInfer."""
