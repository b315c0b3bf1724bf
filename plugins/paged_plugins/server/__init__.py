"""The plugin ``server``: engines over HTTP. The way of a chat body, file by file:

``http/gate.py`` receives and checks it, ``http/endpoint.py`` decodes it to what
``openai/protocol.py`` says, ``openai/chat.py`` opens a chat, for which ``service.py`` must have
room; ``openai/parameters.py`` makes the prompt and the sampling parameters, with a form by
``openai/formats.py`` and parsers by ``parsers/choice.py``, in one call beside the event loop;
``answer.py`` gives it to the engine client. Back: ``answer.py`` hears of what was generated,
``openai/chat.py`` encodes it, with heads by ``openai/chunks.py``, and ``http/gate.py`` writes.
"""
