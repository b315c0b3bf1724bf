"""The routes ``openai``: the API of OpenAI, with vLLM's extras."""
