"""The routes ``responses``: OpenAI's Responses API, without anything that is stored."""
