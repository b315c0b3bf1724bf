"""Cost model ``measured``: steps of GPU engines by measured times of their kernels."""
