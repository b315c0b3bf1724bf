"""Front ends and the engines that serve them: one line between the two, and what crosses it."""
