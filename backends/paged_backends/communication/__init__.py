"""Components of the slot ``communicator``: how ranks exchange tensors."""
