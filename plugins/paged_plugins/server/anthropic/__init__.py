"""The routes ``anthropic``: the API of Anthropic."""
