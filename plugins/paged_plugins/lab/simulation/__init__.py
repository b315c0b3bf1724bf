"""Engines without a model: a virtual clock that a cost model moves on."""
