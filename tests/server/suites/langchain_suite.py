"""langchain-tests over ChatOpenAI; run by ``test_suites.py`` in an environment that has both."""

from __future__ import annotations

import os
from typing import Any

from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests


class TestChatOpenAI(ChatModelIntegrationTests):
    """The demo model knows a few sentences: a bias ends the texts of JSON, which else go on."""

    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        quote, brace = os.environ["TEST_QUOTE"], os.environ["TEST_BRACE"]
        return {
            "model": "demo",
            "base_url": os.environ["TEST_API_BASE_URL"],
            "api_key": "none",
            "temperature": 0,
            "max_tokens": 128,
            "max_retries": 0,
            "timeout": 60,
            "stream_usage": True,
            "logit_bias": {quote: 100, brace: 90},
        }
